-- The queue of requests that take turns at a limiter, as Redis keeps it. Decides nothing: turns.lua and queue.lua do.
--
--   KEY#queue  a hash, whose numbers are doubles. Each of its fields is described where it is packed:
--     m            version (1 byte) and the numbers of the queue and of its three classes (`save`)
--     b            the bookings (bookings.lua)
--     t CLASS NAME a tenant
--     r ID         a request, and the grants of its slot, four numbers each
--     n ID, p ID   the next request of the same tenant with its cost, and the one before
--     g GATEWAY    when the last request of the gateway came, and how many of its requests wait
--   KEY#order  a sorted set: the requests by the instants of their slots, and with negative scores the tenants of each
--     class: those that would have started by their virtual finish, later ones by their start, and those that wait for
--     nothing by theirs
--
-- Both are written at the end of a call; the sorted set also before it is read. An ID is a big-endian double, so that equal
-- scores are in the order of arrival.

local call, common, states = require 'call', require 'common', require 'state'
local M = {}

local redis, pack, unpack, unpack_from = redis, struct.pack, unpack, struct.unpack
local VERSION, lifetime = common.VERSION, common.lifetime
-- The classes of requests in names: Lua writes a number as slowly as it makes three functions.
local CLASSES = { '1', '2', '3' }
local META, META_SIZE = '<Bddddddddddddddddddddddddd', 201
local TENANT, REQUEST = '<ddddddd', '<dddddBBI2c0I2c0'
-- The keys of a queue live so much longer than its last deadline, so that their end is not set with each request, µs.
local LIFE = 60000000
-- Lua passes a few thousand arguments at most.
local MOST = 1000

-- A queue in which no request waits; the hash has nothing that counts. `first` and `lapse` are lower bounds of the first slot and
-- of the instant at which the first booking lapses; `next_look` is when requests of dead gateways are looked for, and `room` 1 if
-- permits before the last slots may be free. Each class has `now`, the virtual time, `passed`, the permits of others that passed it,
-- and `next`, a lower bound of the first later start.
local function unused(hash, order)
  return {
    hash = hash, order = order,
    -- The fields of the hash as they are read and written, the names of those to write, and what is to be set in the order.
    raw = {}, dirty = { nil, nil, nil, nil, nil, nil, nil, nil }, scores = { nil, nil, nil, nil, nil, nil, nil, nil },
    requests = {}, tenants = {},
    is_new = true, is_bare = true, changed = false, closed = 0, until_ms = false,
    born = call.lost_at > call.now and call.lost_at or call.now, last = 0, len = 0, first = 0, expires = 0, next_look = 0,
    booked = 0, lapse = math.huge, last_booked = 0, room = 0, booking_list = false,
    { now = 0, weight = 0, passed = 0, tenants = 0, next = math.huge, started = false },
    { now = 0, weight = 0, passed = 0, tenants = 0, next = math.huge, started = false },
    { now = 0, weight = 0, passed = 0, tenants = 0, next = math.huge, started = false },
  }
end

-- The queue of KEYS[k], with these fields read; nil where the key holds a foreign value.
function M.open(k, horizon, fields)
  local q = unused(call.keys[k], call.keys[k + 1])
  local values = common.ask('HMGET', q.hash, 'm', unpack(fields))
  if not values then return nil end
  local meta = values[1]
  if not meta then return q end
  if #meta ~= META_SIZE or string.byte(meta) ~= VERSION then return nil end
  if states.is_lost(unpack_from('<d', meta, 2), horizon) then return q end
  local first, second, third, _ = q[1], q[2], q[3], nil
  _, q.born, q.last, q.len, q.first, q.expires, q.next_look,
    first.now, first.weight, first.passed, first.tenants, first.next,
    second.now, second.weight, second.passed, second.tenants, second.next,
    third.now, third.weight, third.passed, third.tenants, third.next,
    q.booked, q.lapse, q.last_booked, q.room = unpack_from(META, meta)
  q.is_new, q.is_bare = false, false
  local raw = q.raw
  for i = 1, #fields do raw[fields[i]] = values[i + 1] end
  return q
end

function M.id(number) return pack('>d', number) end

-- The name of a tenant in a queue.
function M.member(class, name) return CLASSES[class] .. name end

function M.fetch(q, fields)
  if q.is_bare then return end
  local raw, missing = q.raw, {}
  for i = 1, #fields do
    if raw[fields[i]] == nil then missing[#missing + 1] = fields[i] end
  end
  if #missing == 0 then return end
  local values = redis.call('HMGET', q.hash, unpack(missing))
  for i = 1, #missing do raw[missing[i]] = values[i] end
end

function M.get(q, field)
  local raw = q.raw[field]
  if raw == nil then
    raw = not q.is_bare and redis.call('HGET', q.hash, field)
    q.raw[field] = raw
  end
  return raw
end

-- Without a value the field is deleted.
function M.put(q, field, raw)
  local dirty = q.dirty
  q.raw[field], dirty[#dirty + 1] = raw or false, field
end

function M.tenant(q, member)
  local it = q.tenants[member]
  if it == nil then
    local raw = M.get(q, 't' .. member)
    it = false
    if raw then
      local weight, start, waiting, granted, head, head_cost, tail = unpack_from(TENANT, raw)
      it = {
        weight = weight, start = start, waiting = waiting, granted = granted, head = head, head_cost = head_cost, tail = tail }
    end
    q.tenants[member] = it
  end
  return it or nil
end

function M.put_tenant(q, member, it)
  q.tenants[member] = it or false
  M.put(q, 't' .. member, it and pack(TENANT, it.weight, it.start, it.waiting, it.granted, it.head, it.head_cost, it.tail))
end

function M.request(q, id)
  local it = q.requests[id]
  if it == nil then
    local field = 'r' .. id
    if q.raw[field] == nil then M.fetch(q, { field, 'n' .. id, 'p' .. id }) end
    local raw = q.raw[field]
    it = false
    if raw then
      local gateway, ticket, deadline, at, cost, class, called, tenant, like, from = unpack_from(REQUEST, raw)
      it = {
        gateway = gateway, ticket = ticket, deadline = deadline, at = at, cost = cost, class = class, called = called == 1,
        tenant = tenant, like = like, grants = string.sub(raw, from) }
    end
    q.requests[id] = it
  end
  return it or nil
end

function M.put_request(q, id, it)
  q.requests[id] = it or false
  M.put(q, 'r' .. id, it and pack(REQUEST, it.gateway, it.ticket, it.deadline, it.at, it.cost, it.class, it.called and 1 or 0,
    #it.tenant, it.tenant, #it.like, it.like) .. it.grants)
end

-- The request of the same tenant that comes after this one, and its cost.
function M.next_of(q, id)
  local raw = M.get(q, 'n' .. id)
  if raw then return unpack_from('<dd', raw) end
end

function M.put_next(q, id, next, cost) M.put(q, 'n' .. id, next and pack('<dd', next, cost)) end

function M.previous_of(q, id)
  local raw = M.get(q, 'p' .. id)
  return raw and unpack_from('<d', raw) or nil
end

function M.put_previous(q, id, previous) M.put(q, 'p' .. id, previous and pack('<d', previous)) end

-- When the last request of a gateway came, and how many of its requests wait.
function M.gateway(q, gateway)
  local raw = M.get(q, 'g' .. M.id(gateway))
  if raw then return unpack_from('<dd', raw) end
  return nil, 0
end

function M.put_gateway(q, gateway, heard, count)
  M.put(q, 'g' .. M.id(gateway), count > 0 and pack('<dd', heard, count))
end

-- Deletes what is kept about a request, and counts it no longer.
function M.forget(q, id)
  local raw = q.raw
  M.put_request(q, id, nil)
  if raw['n' .. id] ~= false then M.put(q, 'n' .. id, nil) end
  if raw['p' .. id] ~= false then M.put(q, 'p' .. id, nil) end
  q.len, q.changed = q.len - 1, true
end

-- Calls a command with a list of arguments, which is mostly short.
local function call_with(command, key, list)
  local n = #list
  for from = 1, n, MOST do redis.call(command, key, unpack(list, from, n - from < MOST and n or from + MOST - 1)) end
end

function M.set_score(q, score, member)
  local scores = q.scores
  local n = #scores
  scores[n + 1], scores[n + 2] = score, member
end

local function sort(q)
  local scores = q.scores
  if #scores == 0 then return end
  call_with('ZADD', q.order, scores)
  q.scores = {}
end

function M.ordered(q, command, ...)
  sort(q)
  return redis.call(command, q.order, ...)
end

function M.remove(q, members)
  sort(q)
  call_with('ZREM', q.order, members)
end

-- Makes room for a queue: the keys may have a value that was lost.
function M.begin(q)
  if not q.is_new then return end
  redis.call('DEL', q.hash, q.order)
  q.is_new = false
end

-- After an entry: nothing is kept of a queue in which no request waits.
function M.settle(q)
  if q.len > 0 or q.is_new then return end
  redis.call('DEL', q.hash, q.order)
  for name, value in pairs(unused(q.hash, q.order)) do q[name] = value end
end

function M.save(q)
  if q.is_new or not q.changed then return end
  sort(q)
  local first, second, third, raw, dirty = q[1], q[2], q[3], q.raw, q.dirty
  local meta = pack(META, VERSION, q.born, q.last, q.len, q.first, q.expires, q.next_look,
    first.now, first.weight, first.passed, first.tenants, first.next,
    second.now, second.weight, second.passed, second.tenants, second.next,
    third.now, third.weight, third.passed, third.tenants, third.next,
    q.booked, q.lapse, q.last_booked, q.room)
  local set, gone = { 'm', meta, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, nil
  for i = 1, #dirty do
    local field = dirty[i]
    local value = raw[field]
    if value then
      local n = #set
      set[n + 1], set[n + 2] = field, value
    else
      gone = gone or {}
      gone[#gone + 1] = field
    end
  end
  call_with('HSET', q.hash, set)
  if gone then call_with('HDEL', q.hash, gone) end
  if q.until_ms then
    redis.call('PEXPIRE', q.hash, q.until_ms)
    redis.call('PEXPIRE', q.order, q.until_ms)
  end
end

-- Lets the keys live until a request with this deadline is gone.
function M.keep_until(q, deadline)
  if deadline <= q.expires then return end
  q.expires = deadline + LIFE
  q.until_ms = lifetime(q.expires - call.now)
end

return M
