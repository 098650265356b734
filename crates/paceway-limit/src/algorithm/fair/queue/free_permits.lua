-- Permits that are free before the last slots. Twin of queue/free_permits.rs, which explains them.

local call, queue, slots = require 'call', require 'fair.queue', require 'fair.queue.slots'
local states, stored = require 'state', require 'fair.stored'

local pack, unpack_from = struct.pack, struct.unpack
local MOST_MOVED, LOOKS, GRANT, GRANT_SIZE = 16, 128, '<dddd', 32

local function can_move(q, it, below)
  return it and not it.called and it.cost < below and #it.grants == GRANT_SIZE and not queue.is_gone(q, it)
end

-- The request with the last slot that can move and costs less than `below`.
local function last_movable(q, below)
  for id in slots.last(q, call.now + 1, '+inf') do
    local it = stored.request(q, id)
    if can_move(q, it, below) then return id, it end
  end
end

-- The request with the first slot that can move.
local function first_movable(q)
  for _, id in ipairs(stored.ordered(q, 'ZRANGEBYSCORE', call.now + 1, '+inf', 'LIMIT', 0, LOOKS)) do
    local it = stored.request(q, id)
    if can_move(q, it, math.huge) then return id, it end
  end
end

-- Gives a request permits at an earlier instant in place of its own, if the rule has any.
local function moves(q, state, id, it)
  states.save(state)
  states.undo(state)
  local algorithm = state.algorithm
  local whole, ticks, born, aux = unpack_from(GRANT, it.grants)
  if algorithm.refund(state.open, whole, ticks, born, aux, it.cost) then
    local wait, start = algorithm.earliest(state.open, 0, it.cost)
    if call.now + wait < it.at then
      local grants = pack(GRANT, algorithm.take(state.open, start, it.cost))
      if algorithm.promise then algorithm.promise(state.open, wait, start) end
      state.dirty, state.refunded = true, true
      queue.give(q, id, { at = call.now + wait, grants = grants })
      return true
    end
  end
  states.undo(state)
end

-- Gives free permits to the requests with the last slots, and where those find none to the one with the first slot. A gate
-- counts permits, and knows no free ones before others.
return function(q, state)
  if q.len == 0 or state.open.gate then return end
  q.room, q.changed = 0, true
  local below = math.huge
  for _ = 1, MOST_MOVED do
    local id, it = last_movable(q, below)
    local is_first = not id
    if is_first then id, it = first_movable(q) end
    if not id then return end
    if moves(q, state, id, it) then
      below = math.huge
    elseif is_first then
      return
    else
      below = it.cost
    end
  end
  -- The next step moves others.
  q.room = 1
end
