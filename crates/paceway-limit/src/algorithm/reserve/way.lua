-- The choice among the ways of a request: the one with the earliest slot is taken. Changes no state. Twin of way.rs.

local reserve, states = require 'reserve', require 'state'
local M = {}

local huge, unpack_from = math.huge, struct.unpack
local GRANTED, QUEUED, REFUSED = 1, 2, 3

-- The slot that a request would get at these limiters: its outcome, the wait and the permits that are left.
local function offer(wants, budget, ticket)
  local at, later = reserve.slot(wants, budget)
  local left, is_taken = huge, false
  for w = 1, #wants do
    local want = wants[w]
    local state, own = want.state, nil
    if want.is_permits then
      own = states.level(state, true)
    elseif want.enforce then
      own = states.level(state, true) - state.open.queued
      is_taken = is_taken or ticket and not reserve.has_permit(want, ticket)
    end
    if own and own < left then left = own end
  end
  local outcome = later > 0 and REFUSED or not is_taken and GRANTED or budget > 0 and QUEUED or REFUSED
  return outcome, is_taken and huge or math.max(at, later), left
end

-- `ways` has for each way how many of the wants are its own, and how late the slots of those before have to be at least. Returns the
-- number of the way, from 0, and its wants.
function M.earliest(wants, budget, ticket, ways)
  local chosen, taken, best_outcome, best_wait, best_left, best_after
  local first = 1
  for w = 0, #ways / 16 - 1 do
    local count, after = unpack_from('<dd', ways, 16 * w + 1)
    if chosen and after > 0 and best_wait <= after then break end
    local own = {}
    for i = 1, count do own[i] = wants[first + i - 1] end
    first = first + count
    local outcome, wait, left = offer(own, budget, ticket)
    local is_better = not chosen or outcome < best_outcome
    if chosen and outcome == best_outcome then
      is_better = wait < best_wait or wait == best_wait and after == best_after and left > best_left
    end
    if is_better then
      chosen, taken, best_outcome, best_wait, best_left, best_after = w, own, outcome, wait, left, after
    end
  end
  return chosen, taken
end

return M
