-- The requests that wait for one limiter, each with a slot of its own, and which of them takes which slot. Twin of queue.rs,
-- which explains it: same names, same arithmetic. queue/slots.lua has those that move or leave, queue/confirm.lua
-- those whose slots come, queue/free_permits.lua the permits that are free before the last slots, and queue/gone.lua the
-- requests of gateways that have died.

local call, stored, turns = require 'call', require 'fair.stored', require 'fair.turns'
local M = {}

local redis, format = redis, string.format
local MAX_WAITING, LEASE = 10000, 10000000

-- The queue whose first key has the number `k`, opened once per call; nil where the key holds a foreign value.
function M.open(k, horizon, fields)
  local queues = call.queues or {}
  call.queues = queues
  local q = queues[k]
  if q == nil then
    q = stored.open(k, horizon, fields) or false
    queues[k] = q
  elseif q then
    stored.fetch(q, fields)
  end
  return q or nil
end

function M.is_full(q) return q.len >= MAX_WAITING end

-- Whether the gateway of a request has died, or does not reach the store.
function M.is_gone(q, it)
  local heard = stored.gateway(q, it.gateway)
  return not heard or heard < call.now - LEASE
end

-- Removes a request from the order and from those of its gateway.
function M.forget(q, id, it)
  stored.ordered(q, 'ZREM', id)
  stored.forget(q, id)
  local heard, count = stored.gateway(q, it.gateway)
  if heard then stored.put_gateway(q, it.gateway, heard, count - 1) end
end

-- Gives a slot to a request that waits, and returns the one that it had.
function M.give(q, id, slot, is_unseen)
  local it = stored.request(q, id)
  if not it then return nil end
  local old = { at = it.at, grants = it.grants }
  it.at, it.grants = slot.at, slot.grants
  if slot.at < q.first then q.first = slot.at end
  stored.set_score(q, slot.at, id)
  stored.put_request(q, id, it)
  q.changed = true
  if not is_unseen then
    -- A refused PUBLISH must not end the script after other keys were written: the request confirms by itself.
    redis.pcall('PUBLISH', 'paceway:call:' .. format('%.0f', it.gateway), format('%.0f', it.ticket))
  end
  return old
end

-- Gives `slot` to the last of `chain`, its slot to the one before, and so on; returns the slot of the first.
function M.shift(q, chain, slot)
  for i = #chain, 1, -1 do slot = M.give(q, chain[i], slot) or slot end
  return slot
end

-- Lets a request wait. The last of `chain` takes `slot`, and each other one the slot of the next. Returns its number and the
-- instant of its slot.
function M.join(q, newcomer, chain, slot)
  stored.begin(q)
  local number = q.last + 1 > call.now and q.last + 1 or call.now
  local id = stored.id(number)
  q.last = number
  if chain then slot = M.shift(q, chain, slot) end
  local _, count = stored.gateway(q, newcomer.gateway)
  stored.put_gateway(q, newcomer.gateway, call.now, count + 1)
  stored.set_score(q, slot.at, id)
  if q.len == 0 or slot.at < q.first then q.first = slot.at end
  q.len, q.changed = q.len + 1, true
  newcomer.tenant = turns.add(q, newcomer.class, newcomer.tenant, newcomer.weight, number, newcomer.cost)
  newcomer.at, newcomer.grants = slot.at, slot.grants
  stored.put_request(q, id, newcomer)
  stored.keep_until(q, newcomer.deadline)
  return number, slot.at
end

-- Writes the queues of the call.
function M.save_all()
  for _, q in pairs(call.queues) do
    if q then stored.save(q) end
  end
end

return M
