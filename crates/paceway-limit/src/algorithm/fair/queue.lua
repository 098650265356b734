-- The requests that wait for one limiter, each with a slot of its own, and which of them takes which slot. Twin of queue.rs,
-- which explains it: same names, same order, same arithmetic. Here is what most requests need: how they join the queue and
-- confirm their slots. queue/slots.lua has those that move or leave, queue/free_permits.lua the permits that are free before
-- the last slots, and queue/gone.lua the requests of gateways that have died.

if part == 'queue' then
local stored = lazy.stored
local MAX_WAITING, LEASE, OVERDUE = 10000, 10000000, 1000000

-- The queue of KEYS[k], opened once per call; nil where the key holds a foreign value.
local function open(k, horizon, fields)
  queues = queues or {}
  local q = queues[k]
  if q == nil then
    q = stored.open(k, horizon, fields) or false
    queues[k] = q
  elseif q then
    stored.fetch(q, fields)
  end
  return q or nil
end

local function is_full(q) return q.len >= MAX_WAITING end

-- Forgets requests whose slots have passed: their gateways have died, or do not reach the store.
local function forget_overdue(q)
  if not q.is_new and q.first < now - OVERDUE then lazy.gone.forget_overdue(q, now - OVERDUE) end
end

-- Whether the gateway of a request has died, or does not reach the store.
local function is_gone(q, it)
  local heard = stored.gateway(q, it.gateway)
  return not heard or heard < now - LEASE
end

-- Removes a request from the order and from those of its gateway.
local function forget(q, id, it)
  stored.ordered(q, 'ZREM', id)
  stored.forget(q, id)
  local heard, count = stored.gateway(q, it.gateway)
  if heard then stored.put_gateway(q, it.gateway, heard, count - 1) end
end

-- Gives a slot to a request that waits, and returns the one that it had.
local function give(q, id, slot, is_unseen)
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
    redis.pcall('PUBLISH', 'paceway:call:' .. string.format('%.0f', it.gateway), string.format('%.0f', it.ticket))
  end
  return old
end

-- Gives `slot` to the last of `chain`, its slot to the one before, and so on; returns the slot of the first.
local function shift(q, chain, slot)
  for i = #chain, 1, -1 do slot = give(q, chain[i], slot) or slot end
  return slot
end

local function save_all()
  for _, q in pairs(queues) do
    if q then stored.save(q) end
  end
end

return {
  open = open, is_full = is_full, forget_overdue = forget_overdue, is_gone = is_gone, forget = forget, give = give, shift = shift,
  save_all = save_all,
}
end

if part == 'join' then
local stored, queue = lazy.stored, lazy.queue

-- Lets a request wait. The last of `chain` takes `slot`, and each other one the slot of the next. Returns its number and the
-- instant of its slot.
return function(q, newcomer, chain, slot)
  stored.begin(q)
  local number = q.last + 1 > now and q.last + 1 or now
  local id = stored.id(number)
  q.last = number
  if chain then slot = queue.shift(q, chain, slot) end
  local _, count = stored.gateway(q, newcomer.gateway)
  stored.put_gateway(q, newcomer.gateway, now, count + 1)
  stored.set_score(q, slot.at, id)
  if q.len == 0 or slot.at < q.first then q.first = slot.at end
  q.len, q.changed = q.len + 1, true
  newcomer.tenant = lazy.add_turn(q, newcomer.class, newcomer.tenant, newcomer.weight, number, newcomer.cost)
  newcomer.at, newcomer.grants = slot.at, slot.grants
  stored.put_request(q, id, newcomer)
  stored.keep_until(q, newcomer.deadline)
  return number, slot.at
end
end

if part == 'confirm' then
local stored, queue = lazy.stored, lazy.queue
local AHEAD, GONE, LOOK_EVERY = 50000, 16, 500000
local TENANTS, REQUESTS, MOST_LOOKED, MOST_CALLED = 8, 8, 24, 64

-- The first request in turn that is alike, or has a slot that is no later; nil if that is `id`.
local function next_in_turn(q, id, own)
  local class, started = lazy.turns.firsts(q)
  local looked = 0
  for i = 1, #started < TENANTS and #started or TENANTS do
    local tenant = stored.tenant(q, class, string.sub(started[i], 2))
    local number = tenant and tenant.head
    for _ = 1, REQUESTS do
      if not number then break end
      local first = stored.id(number)
      if first == id then return nil end
      local other = stored.request(q, first)
      if other and (other.like == own.like or other.at <= own.at and not queue.is_gone(q, other)) then return first, other end
      looked = looked + 1
      if looked >= MOST_LOOKED then return nil end
      number = stored.next_of(q, first)
    end
  end
end

-- The first request, other than `id`, of the tenant whose turn it is, if it is alike and has a later slot. A request whose own
-- slot is no later than that of `id` needs no other slot in its turn: it is called.
local function first_other(q, id, own)
  for _ = 1, MOST_CALLED do
    local first, other = next_in_turn(q, id, own)
    if not first then return nil end
    if other.at > own.at or queue.is_gone(q, other) then return first, other end
    lazy.turns.serve(q, first, other)
    other.called = true
    stored.put_request(q, first, other)
  end
end

-- Gives the slot of a request that confirms to the one whose turn it is; returns the instant of the slot that it has
-- instead, or nil if it keeps its own.
local function yields(q, id, own, refund)
  for _ = 1, GONE do
    local first, other = first_other(q, id, own)
    if not first then return nil end
    if queue.is_gone(q, other) then
      lazy.slots.leave(q, first, other, refund)
    else
      local chain
      if other.at > own.deadline then
        chain = lazy.slots.chain(q, own.deadline, own.like, other.at, { id, first })
        if not chain then return nil end
      end
      lazy.turns.serve(q, first, other)
      other.called = true
      local slot = queue.give(q, first, { at = own.at, grants = own.grants })
      if chain then slot = queue.shift(q, chain, slot) end
      -- It learns its new slot from the answer.
      queue.give(q, id, slot, true)
      return slot.at
    end
  end
end

-- Decides whether a request, whose slot comes, is sent or yields its slot. Returns nil when it waits there no longer, else the
-- instant of its slot, and the grants if it is sent.
return function(q, id, refund)
  queue.forget_overdue(q)
  local own = stored.request(q, id)
  if not own then return nil end
  if not own.called then stored.fetch(q, { 't' .. CLASSES[own.class] .. own.tenant, 'g' .. stored.id(own.gateway) }) end
  local _, count = stored.gateway(q, own.gateway)
  stored.put_gateway(q, own.gateway, now, count)
  q.changed = true
  if now >= q.next_look or q.next_look > now + LOOK_EVERY then lazy.gone.forget_gone(q, own.like, refund) end
  if own.at < q.closed then
    -- It asks again, and its slot comes after the pause.
    lazy.slots.leave(q, id, own, refund)
    return nil
  end
  if not own.called then
    if own.at - now > AHEAD then return own.at end
    local at = yields(q, id, own, refund)
    if at then return at end
    lazy.turns.serve(q, id, own)
  end
  queue.forget(q, id, own)
  return own.at, own.grants
end
end
