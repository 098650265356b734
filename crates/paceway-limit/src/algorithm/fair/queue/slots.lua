-- Requests that move to other slots, so that one more fits in, and those that leave theirs. Twin of queue.rs, too.

local call, queue, stored, turns = require 'call', require 'fair.queue', require 'fair.stored', require 'fair.turns'
local M = {}

local unpack_from = struct.unpack
local MOST_MOVED, LOOKS, FEW = 16, 128, 8

-- The last requests with slots from `from` to `to`, the last first, in pieces: mostly the first one is meant.
function M.last(q, from, to)
  local piece, i, offset = {}, 0, 0
  return function()
    i = i + 1
    if i > #piece then
      if offset > 0 and #piece < (offset == FEW and FEW or LOOKS) or offset >= LOOKS then return nil end
      local count = offset == 0 and FEW or LOOKS - FEW
      piece = stored.ordered(q, 'ZREVRANGEBYSCORE', to, from, 'LIMIT', offset, count)
      if #piece == 0 then return nil end
      offset, i = offset + count, 1
      local fields = {}
      for at, id in ipairs(piece) do fields[at] = 'r' .. id end
      stored.fetch(q, fields)
    end
    return piece[i]
  end
end

local function number(id) return (unpack_from('>d', id)) end

-- The requests that have to move so that a request with this `deadline` gets a slot, if a slot at `goal` is free; nil if
-- there is no way. `but` do not move. With the deadline of the last one.
function M.chain(q, deadline, like, goal, but)
  local chain, fixed, limit = {}, {}, deadline
  for _, id in ipairs(but) do fixed[id] = true end
  while goal > limit do
    if #chain >= MOST_MOVED then return nil end
    local best, furthest
    for id in M.last(q, 0, limit) do
      local it = stored.request(q, id)
      if it and not fixed[id] and not it.called and it.like == like and it.at > call.now and it.at >= q.closed and it.deadline > limit then
        if not furthest or it.deadline > furthest or it.deadline == furthest and number(id) > number(best) then
          best, furthest = id, it.deadline
        end
        if furthest >= goal then break end
      end
    end
    if not best then return nil end
    chain[#chain + 1], fixed[best], limit = best, true, furthest
  end
  return chain, limit
end

-- Removes a request. The last request that is alike takes its slot.
function M.leave(q, id, it, refund)
  if not it.called then turns.remove(q, id, it) end
  queue.forget(q, id, it)
  local slot = { at = it.at, grants = it.grants }
  if it.at >= math.max(q.closed, call.now) then
    for last_id in M.last(q, it.at + 1, '+inf') do
      local other = stored.request(q, last_id)
      if other and not other.called and other.like == it.like and not queue.is_gone(q, other) then
        slot = queue.give(q, last_id, slot)
        break
      end
    end
  end
  refund(slot.grants)
end

-- Whether a request that costs less waits for one of the last slots before `deadline`.
function M.has_cheaper(q, deadline, cost)
  if cost == 1 then return false end
  for id in M.last(q, 0, deadline) do
    local it = stored.request(q, id)
    if it and it.cost < cost then return true end
  end
  return false
end

return M
