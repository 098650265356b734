-- Permits that are free before the last slots. Twin of queue/free_permits.rs, which explains them.

local call, gates = require 'call', require 'gate'
local adjust, queue, states = require 'reserve.adjust', require 'fair.queue', require 'state'

local unpack_from = struct.unpack
local MOST_MOVED, AHEAD, GRANT, GRANT_SIZE = 16, 50000, '<dddd', 32

-- The request with the last slot, or the first, that can move and costs less than `below`.
local function movable(q, below, is_forward)
  for id, it in queue.walk(q, call.now + AHEAD + 1, '+inf', is_forward) do
    if it and not it.called and it.cost < below and #it.grants == GRANT_SIZE and not queue.is_gone(q, it) then return id, it end
  end
end

local function moves(q, state, id, it)
  states.save(state)
  states.undo(state)
  local whole, ticks, born, aux = unpack_from(GRANT, it.grants)
  if adjust.give_back(state, it.cost, whole, ticks, born, aux) then
    local kept = state.floors and state.floors[it.class]
    -- It learns of a slot by a message: one that has come by then is too late for a margin of a few ms.
    for from = AHEAD, 0, -AHEAD do
      local wait, start = states.earliest(state, true, from, it.cost, kept)
      if call.now + wait < it.at then
        local grants = states.take_ahead(state, start, it.cost, wait, kept)
        state.refunded = true
        queue.give(q, id, { at = call.now + wait, grants = grants })
        return true
      end
    end
  end
  states.undo(state)
end

-- Gives free permits to the requests with the last slots, and where those find none to the one with the first slot.
return function(q, state)
  local gate = state.open.gate
  if q.len == 0 or gate and not gates.takes_back(gate, state.algorithm) then return end
  q.room, q.changed = 0, true
  local below = math.huge
  for _ = 1, MOST_MOVED do
    local id, it = movable(q, below)
    local is_first = not id
    if is_first then id, it = movable(q, math.huge, true) end
    if not id then return end
    if moves(q, state, id, it) then
      below = math.huge
    elseif is_first then
      return
    else
      below = it.cost
    end
  end
  q.room = 1
end
