-- Requests of gateways that have died, or do not reach the store. Twin of queue/gone.rs.

local call, queue, slots = require 'call', require 'fair.queue', require 'fair.queue.slots'
local stored, turns = require 'fair.stored', require 'fair.turns'
local M = {}

local GONE, LOOK_EVERY, OVERDUE = 16, 500000, 1000000

-- Forgets requests whose slots have passed: their gateways have died, or do not reach the store.
function M.forget_overdue(q)
  local overdue = call.now - OVERDUE
  if q.is_new or q.first >= overdue then return end
  local first = stored.ordered(q, 'ZRANGEBYSCORE', 0, '+inf', 'WITHSCORES', 'LIMIT', 0, GONE + 1)
  for i = 1, #first, 2 do
    local id = first[i]
    q.first = tonumber(first[i + 1])
    if q.first >= overdue or i > 2 * GONE then break end
    local it = stored.request(q, id)
    if it then
      if not it.called then turns.remove(q, id, it) end
      queue.forget(q, id, it)
    else
      stored.ordered(q, 'ZREM', id)
    end
  end
end

-- Gives the next slots whose gateways have died to other requests, if they are alike to the one that confirms.
function M.forget_gone(q, like, refund)
  local firsts = stored.ordered(q, 'ZRANGEBYSCORE', call.now, '+inf', 'LIMIT', 0, GONE)
  local fields = {}
  for i, id in ipairs(firsts) do fields[i] = 'r' .. id end
  stored.fetch(q, fields)
  q.next_look = call.now + LOOK_EVERY
  for _, id in ipairs(firsts) do
    local it = stored.request(q, id)
    if it and it.like == like and queue.is_gone(q, it) then
      slots.leave(q, id, it, refund)
      q.next_look = call.now
    end
  end
end

return M
