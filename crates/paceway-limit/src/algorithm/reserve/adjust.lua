-- Changes of a level without a request: permits are taken that others used, and permits come back. Twin of adjust.rs,
-- `refund` in rule.rs and `move_up_at` in store/memory/changes.rs.

local common, gates = require 'common', require 'gate'
local replies, reserve, states = require 'replies', require 'reserve', require 'state'
local M = {}

local floor = math.floor
local LOWERINGS = 64
local CHARGES = 16
local SLIDING_WINDOW, IS_WINDOW = 83, { [68] = true, [70] = true, [83] = true }

function M.lower(state, most)
  local algorithm, open = state.algorithm, state.open
  if algorithm.lease then return end
  for _ = 1, LOWERINGS do
    local cost, start = algorithm.level(open) - most, nil
    while not start and cost > 0 do
      local at, its_start = algorithm.earliest(open, 0, cost)
      if at <= 0 then start = its_start else cost = floor(cost / 2) end
    end
    if not start then return end
    algorithm.take(open, start, cost)
    state.dirty = true
  end
end

function M.charge(state, permits)
  local algorithm, open, left = state.algorithm, state.open, permits
  local is_window = IS_WINDOW[algorithm.kind]
  for i = 0, CHARGES do
    local cost = left
    if left == 0 then break end
    local first = algorithm.earliest(open, 0, is_window and i < CHARGES and 1 or cost)
    if first > common.MAX_BUDGET then break end
    local at, start = algorithm.earliest(open, 0, cost)
    while at > first do
      cost = floor((cost + 1) / 2)
      at, start = algorithm.earliest(open, 0, cost)
    end
    algorithm.take(open, start, cost)
    left, state.dirty = left - cost, true
  end
  return left
end

-- Returns permits to a state and to its gate, in a step that may be undone: whether either takes them, and whether the state does.
function M.give_back(state, cost, whole, ticks, born, aux)
  local algorithm, open = state.algorithm, state.open
  local given = algorithm.refund(open, whole, ticks, born, aux, cost)
  if not open.gate or not gates.refund(open, algorithm, ticks, aux, cost) then return given, given end
  state.has_new_gate = true
  return true, given
end

function M.refund(state, cost, whole, ticks, born, aux)
  local given, has_changed = M.give_back(state, cost, whole, ticks, born, aux)
  if has_changed then state.dirty = true end
  if given then state.refunded = true end
  return given
end

-- Gives a request other permits in place of `parts`, within the budget.
function M.move_up(wants, budget, parts)
  local given, taken = true, nil
  for w = 1, #wants do
    local state = wants[w].state
    states.save(state)
    states.undo(state)
    given = given and (not state.open.gate or gates.takes_back(state.open.gate, state.algorithm))
  end
  for w = 1, #wants do
    local state, part = wants[w].state, parts[w]
    if given and part[1] >= 0 then
      given = M.give_back(state, wants[w].cost, part[2], part[3], part[4], part[5])
    end
  end
  local at, retry_after, bound
  if given then at, retry_after, bound, taken = reserve.decide(wants, budget, nil) end
  for w = 1, #wants do
    local state = wants[w].state
    if taken then state.dirty, state.refunded = true, true else states.undo(state) end
  end
  if taken then return replies.push_decided(wants, at, retry_after, bound, taken) end
  replies.push_decision(0, 0, 1, 1, states.level(wants[1].state, true))
end

-- Whether slots later than the next one, which comes in `next` µs, are taken, where permits are free before the tail of a line
-- of time.
local function is_taken_after(open, next, algorithm)
  local holes, credit = open.holes, open.credit
  if #holes == 0 and not credit then return false end
  open.holes, open.credit = {}, nil
  local last = algorithm.earliest(open, 0, 1)
  open.holes, open.credit = holes, credit
  return last > next
end

-- Tells all gateways that permits were refunded to a limiter, and when its next slot is free, if requests wait for slots
-- after that one.
function M.publish(state)
  local algorithm, open = state.algorithm, state.open
  local next = states.earliest(state, true, 0, 1)
  local is_taken = algorithm.is_taken_after or is_taken_after
  if open.gate and gates.has_promised(open.gate) or is_taken(open, next, algorithm) then
    -- In a sliding window the permits of a waiting request may be all that leaves no room for it now.
    if algorithm.kind == SLIDING_WINDOW then next = 0 end
    gates.publish(state.key, next, 'free')
  end
end

return M
