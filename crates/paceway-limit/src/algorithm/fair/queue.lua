-- The requests that wait for one limiter, each with a slot of its own, and which of them takes which slot. Twin of queue.rs,
-- which explains it: same names, same order, same arithmetic.

local function make_queue()
local stored = make_stored_queue()
local turns, queue = make_turns(stored), {}
local GRANT, GRANT_SIZE = '<dddd', 32
local MAX_WAITING, AHEAD, LEASE, OVERDUE = 10000, 50000, 10000000, 1000000
local MOST_MOVED, MOST_CALLED, MOST_LOOKED, LOOKS, FEW, GONE, LOOK_EVERY = 16, 64, 24, 128, 8, 16, 500000
local opened = {}

-- The queue of KEYS[k], opened once per call; nil where the key holds a foreign value.
function queue.open(k, horizon, fields)
  local q = opened[k]
  if q == nil then
    q = stored.open(k, horizon, fields) or false
    opened[k] = q
  elseif q then
    stored.fetch(q, fields)
  end
  return q or nil
end

-- The names of the fields about a request that comes, and about one that waits.
function queue.fields_of_newcomer(class, tenant, gateway)
  return { 't' .. class .. tenant, 'g' .. stored.id(gateway) }
end

function queue.fields_of(number)
  local id = stored.id(number)
  return { 'r' .. id, 'n' .. id, 'p' .. id }
end

function queue.is_full(q) return q.len >= MAX_WAITING end

local function notify(it)
  -- A refused PUBLISH must not end the script after other keys were written: the request confirms by itself.
  redis.pcall('PUBLISH', 'paceway:call:' .. string.format('%.0f', it.gateway), string.format('%.0f', it.ticket))
end

local function forget(q, id, it)
  redis.call('ZREM', q.order, id)
  stored.put_request(q, id, nil)
  q.len, q.changed = q.len - 1, true
  local heard, count = stored.gateway(q, it.gateway)
  if heard then stored.put_gateway(q, it.gateway, heard, count - 1) end
end

-- Forgets requests whose slots have passed: their gateways have died, or do not reach the store.
function queue.forget_overdue(q)
  if q.is_new or q.first >= now - OVERDUE then return end
  local first = redis.call('ZRANGEBYSCORE', q.order, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, GONE + 1)
  for i = 1, #first, 2 do
    local id = first[i]
    q.first = tonumber(first[i + 1])
    if q.first >= now - OVERDUE or i > 2 * GONE then break end
    local it = stored.request(q, id)
    if it then
      if not it.called then turns.remove(q, id, it) end
      forget(q, id, it)
    else
      redis.call('ZREM', q.order, id)
    end
  end
end

-- The last requests with slots from `from` to `to`, the last first, in pieces: mostly the first one is meant.
local function last_slots(q, from, to)
  local piece, i, offset = {}, 0, 0
  return function()
    i = i + 1
    if i > #piece then
      if offset > 0 and #piece < (offset == FEW and FEW or LOOKS) or offset >= LOOKS then return nil end
      local count = offset == 0 and FEW or LOOKS - FEW
      piece = redis.call('ZREVRANGEBYSCORE', q.order, to, from, 'LIMIT', offset, count)
      if #piece == 0 then return nil end
      offset, i = offset + count, 1
      local fields = {}
      for at, id in ipairs(piece) do fields[at] = 'r' .. id end
      stored.fetch(q, fields)
    end
    return piece[i]
  end
end

-- The requests that have to move so that a request with this `deadline` gets a slot, if a slot at `goal` is free; nil if
-- there is no way. `but` do not move. With the deadline of the last one.
function queue.chain(q, deadline, like, goal, but)
  local chain, fixed, limit = {}, {}, deadline
  for _, id in ipairs(but) do fixed[id] = true end
  while goal > limit do
    if #chain >= MOST_MOVED then return nil end
    local best, furthest
    for id in last_slots(q, 0, limit) do
      local it = stored.request(q, id)
      if it and not fixed[id] and not it.called and it.like == like and it.at > now and it.at >= q.closed and it.deadline > limit then
        if not furthest or it.deadline > furthest or it.deadline == furthest and stored.number(id) > stored.number(best) then
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

-- Gives a slot to a request that waits, and returns the one that it had.
local function give(q, id, slot, is_unseen)
  local it = stored.request(q, id)
  if not it then return nil end
  local old = { at = it.at, grants = it.grants }
  it.at, it.grants = slot.at, slot.grants
  q.first = math.min(q.first, slot.at)
  redis.call('ZADD', q.order, slot.at, id)
  stored.put_request(q, id, it)
  q.changed = true
  if not is_unseen then notify(it) end
  return old
end

-- Gives `slot` to the last of `chain`, its slot to the one before, and so on; returns the slot of the first.
local function shift(q, chain, slot)
  for i = #chain, 1, -1 do slot = give(q, chain[i], slot) or slot end
  return slot
end

-- Lets a request wait. The last of `chain` takes `slot`, and each other one the slot of the next. Returns its number and the
-- instant of its slot.
function queue.join(q, newcomer, chain, slot)
  stored.begin(q)
  local number = math.max(q.last + 1, now)
  local id = stored.id(number)
  q.last = number
  slot = shift(q, chain, slot)
  local _, count = stored.gateway(q, newcomer.gateway)
  stored.put_gateway(q, newcomer.gateway, now, count + 1)
  redis.call('ZADD', q.order, slot.at, id)
  q.first = q.len == 0 and slot.at or math.min(q.first, slot.at)
  q.len, q.changed = q.len + 1, true
  newcomer.tenant = turns.add(q, newcomer.class, newcomer.tenant, newcomer.weight, number, newcomer.cost)
  newcomer.at, newcomer.grants, newcomer.called = slot.at, slot.grants, false
  stored.put_request(q, id, newcomer)
  stored.keep_until(q, newcomer.deadline)
  return number, slot.at
end

-- Whether the gateway of a request has died, or does not reach the store.
local function is_gone(q, it)
  local heard = stored.gateway(q, it.gateway)
  return not heard or heard < now - LEASE
end

local function leave(q, id, it, refund)
  if not it.called then turns.remove(q, id, it) end
  forget(q, id, it)
  local slot = { at = it.at, grants = it.grants }
  if it.at >= math.max(q.closed, now) then
    for last in last_slots(q, it.at + 1, '+inf') do
      local other = stored.request(q, last)
      if other and not other.called and other.like == it.like and not is_gone(q, other) then
        slot = give(q, last, slot)
        break
      end
    end
  end
  refund(slot.grants)
end

-- The request with the last slot that can move and costs less than `below`.
local function last_movable(q, below)
  for id in last_slots(q, now + 1, '+inf') do
    local it = stored.request(q, id)
    if it and not it.called and it.cost < below and #it.grants == GRANT_SIZE and not is_gone(q, it) then return id, it end
  end
end

-- Gives free permits to the requests with the last slots, as free_permits.rs explains. A gate counts permits, and knows no
-- free ones before others.
function queue.fill(q, state)
  if q.room == 0 or q.len == 0 or state.open.gate then return end
  q.room, q.changed = 0, true
  local algorithm, open, below = state.algorithm, state.open, math.huge
  for _ = 1, MOST_MOVED do
    local id, it = last_movable(q, below)
    if not id then return end
    local wait, start = algorithm.earliest(open, 0, it.cost)
    if now + wait < it.at then
      local grants = struct.pack(GRANT, algorithm.take(open, start, it.cost))
      state.dirty = true
      local old = give(q, id, { at = now + wait, grants = grants })
      give_back(state, it.cost, struct.unpack(GRANT, old.grants))
      below = math.huge
    elseif it.cost == 1 then
      return
    else
      below = it.cost
    end
  end
  -- The next step moves others.
  q.room = 1
end

-- Whether a request that costs less waits for one of the last slots before `deadline`.
function queue.has_cheaper(q, deadline, cost)
  if cost == 1 then return false end
  for id in last_slots(q, 0, deadline) do
    local it = stored.request(q, id)
    if it and it.cost < cost then return true end
  end
  return false
end

-- Removes a request that waits no longer. The last request that is alike takes its slot.
function queue.leave(q, number, refund)
  local id = stored.id(number)
  local it = stored.request(q, id)
  if not it then return false end
  leave(q, id, it, refund)
  return true
end

-- The first request in turn that is alike, or has a slot that is no later; nil if that is `id`.
local function next_in_turn(q, id, own)
  local looked = 0
  for number in turns.firsts(q) do
    local first = stored.id(number)
    if first == id then return nil end
    local other = stored.request(q, first)
    if other and (other.like == own.like or other.at <= own.at and not is_gone(q, other)) then return first, other end
    looked = looked + 1
    if looked >= MOST_LOOKED then return nil end
  end
end

-- The first request, other than `id`, of the tenant whose turn it is, if it is alike and has a later slot. A request whose own
-- slot is no later than that of `id` needs no other slot in its turn: it is called.
local function first_other(q, id, own)
  for _ = 1, MOST_CALLED do
    local first, other = next_in_turn(q, id, own)
    if not first then return nil end
    if other.at > own.at or is_gone(q, other) then return first, other end
    turns.serve(q, first, other)
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
    if is_gone(q, other) then
      leave(q, first, other, refund)
    else
      local chain = queue.chain(q, own.deadline, own.like, other.at, { id, first })
      if not chain then return nil end
      local slot = give(q, first, { at = own.at, grants = own.grants })
      turns.serve(q, first, other)
      other.called = true
      stored.put_request(q, first, other)
      slot = shift(q, chain, slot)
      -- It learns its new slot from the answer.
      give(q, id, slot, true)
      return slot.at
    end
  end
end

-- Gives the next slots whose gateways have died to other requests, if they are alike to the one that confirms.
local function forget_gone(q, like, refund)
  if now < q.next_look and q.next_look <= now + LOOK_EVERY then return end
  local firsts = redis.call('ZRANGEBYSCORE', q.order, now, '+inf', 'LIMIT', 0, GONE)
  local fields = {}
  for i, id in ipairs(firsts) do fields[i] = 'r' .. id end
  stored.fetch(q, fields)
  q.next_look = now + LOOK_EVERY
  for _, id in ipairs(firsts) do
    local it = stored.request(q, id)
    if it and it.like == like and is_gone(q, it) then
      leave(q, id, it, refund)
      q.next_look = now
    end
  end
end

-- Decides whether a request, whose slot comes, is sent or yields its slot. Returns nil when it waits there no longer, else the
-- instant of its slot, and the grants if it is sent.
function queue.confirm(q, number, refund)
  queue.forget_overdue(q)
  local id = stored.id(number)
  local own = stored.request(q, id)
  if not own then return nil end
  stored.fetch(q, { 't' .. own.class .. own.tenant, 'g' .. stored.id(own.gateway) })
  local _, count = stored.gateway(q, own.gateway)
  stored.put_gateway(q, own.gateway, now, count)
  q.changed = true
  forget_gone(q, own.like, refund)
  if own.at < q.closed then
    -- It asks again, and its slot comes after the pause.
    leave(q, id, own, refund)
    return nil
  end
  if not own.called then
    if own.at - now > AHEAD then return own.at end
    local at = yields(q, id, own, refund)
    if at then return at end
    turns.serve(q, id, own)
  end
  forget(q, id, own)
  return own.at, own.grants
end

-- The instant of the slot of a request that waits.
function queue.at(q, number)
  local it = stored.request(q, stored.id(number))
  return it and it.at
end

queue.known, queue.settle, queue.stored, queue.turns = turns.known, stored.settle, stored, turns

-- Few calls meet bookings.
local made
local function bookings()
  made = made or make_bookings(stored, turns)
  return made
end

function queue.book(...) return bookings().book(...) end

function queue.claim(q, ...)
  if q.booked > 0 then bookings().claim(q, ...) end
end

function queue.lapse(q, ...)
  if q.booked > 0 then bookings().lapse(q, ...) end
end

function queue.save_all()
  for _, q in pairs(opened) do
    if q then stored.save(q) end
  end
end
return queue
end

-- The queues of this call, made when the first entry needs one.
local queues
local function queues_of_call()
  queues = queues or make_queue()
  return queues
end
