-- The queue of requests that take turns at a limiter, as Redis keeps it. Decides nothing: turns.lua and queue.lua do.
--
--   KEY#queue  a hash, whose numbers are doubles:
--     m            version (1 byte), born, last number, requests that wait, a lower bound of the first slot, the instant at
--                  which the keys expire, when requests of dead gateways are looked for; for each priority the virtual
--                  time, the weight, the permits of others that passed, the tenants, a lower bound of the first later start;
--                  the bookings, a lower bound of when the first lapses, the slot of the last one, and whether permits
--                  before the last slots may be free
--     b            the bookings: slot, cost, class (a byte), tenant and alike (each after 2 bytes of length), the grant
--     t CLASS NAME a tenant: weight, start, requests that wait, permits granted, the first request and its cost, the last one
--     r ID         a request: gateway, number of its ticket, deadline, slot, cost; class and called (a byte each); tenant and
--                  alike (each after 2 bytes of length); the grants of its slot, four numbers each
--     n ID, p ID   the next request of the same tenant with its cost, and the one before
--     g GATEWAY    when the last request of the gateway came, and how many of its requests wait
--   KEY#order  a sorted set: the requests by the instants of their slots, and with negative scores the tenants of each
--     class: those that would have started by their virtual finish, later ones by their start, and those that wait for
--     nothing by theirs
--
-- The hash is written once per call, the sorted set at once. An ID is a big-endian double, so that equal scores are in the
-- order of arrival.

local function make_stored_queue()
local pack, unpack_from = struct.pack, struct.unpack
local META, META_SIZE, BOOKING = '<B' .. string.rep('d', 25), 201, '<ddBI2c0I2c0c32'
local TENANT, REQUEST = '<ddddddd', '<dddddBBI2c0I2c0'
-- The keys of a queue live so much longer than its last deadline, so that their end is not set with each request, µs.
local LIFE = 60000000

local function clear(q)
  q.raw, q.dirty, q.requests, q.tenants = {}, {}, {}, {}
  -- No request waits there; the hash has nothing that counts.
  q.is_new, q.is_bare = true, true
  q.born, q.last, q.len, q.first, q.expires, q.next_look, q.until_ms = math.max(now, lost_at), 0, 0, 0, 0, 0, nil
  q.booked, q.lapse, q.last_booked, q.room, q.booking_list = 0, math.huge, 0, 0, nil
  for class = 1, 3 do q[class] = { now = 0, weight = 0, passed = 0, tenants = 0, next = math.huge } end
end

-- The queue of KEYS[k], with these fields read; nil where the key holds a foreign value.
local function open(k, horizon, fields)
  local values = ask('HMGET', KEYS[k], 'm', unpack(fields))
  if not values then return nil end
  local q = { hash = KEYS[k], order = KEYS[k + 1] }
  clear(q)
  local meta = values[1]
  if not meta then return q end
  if #meta ~= META_SIZE or string.byte(meta) ~= VERSION then return nil end
  local born = unpack_from('<d', meta, 2)
  if is_lost(born, horizon) then return q end
  local first, second, third, _ = q[1], q[2], q[3], nil
  _, q.born, q.last, q.len, q.first, q.expires, q.next_look,
    first.now, first.weight, first.passed, first.tenants, first.next,
    second.now, second.weight, second.passed, second.tenants, second.next,
    third.now, third.weight, third.passed, third.tenants, third.next,
    q.booked, q.lapse, q.last_booked, q.room = unpack_from(META, meta)
  q.is_new, q.is_bare = false, false
  for i, field in ipairs(fields) do q.raw[field] = values[i + 1] end
  return q
end

local function id(number) return pack('>d', number) end
local function number(id) return (unpack_from('>d', id)) end

-- Reads fields together.
local function fetch(q, fields)
  local missing = {}
  for _, field in ipairs(fields) do
    if q.raw[field] == nil then missing[#missing + 1] = field end
  end
  if #missing == 0 or q.is_bare then return end
  local values = redis.call('HMGET', q.hash, unpack(missing))
  for i, field in ipairs(missing) do q.raw[field] = values[i] end
end

local function get(q, field)
  local raw = q.raw[field]
  if raw == nil then
    raw = not q.is_bare and redis.call('HGET', q.hash, field)
    q.raw[field] = raw
  end
  return raw
end

-- Without a value the field is deleted.
local function put(q, field, raw) q.raw[field], q.dirty[field] = raw or false, true end

local function tenant(q, class, name)
  local member = class .. name
  local it = q.tenants[member]
  if it == nil then
    local raw = get(q, 't' .. member)
    it = false
    if raw then
      it = {}
      it.weight, it.start, it.waiting, it.granted, it.head, it.head_cost, it.tail = unpack_from(TENANT, raw)
    end
    q.tenants[member] = it
  end
  return it or nil
end

local function put_tenant(q, class, name, it)
  local member = class .. name
  q.tenants[member] = it or false
  put(q, 't' .. member, it and pack(TENANT, it.weight, it.start, it.waiting, it.granted, it.head, it.head_cost, it.tail))
end

local function request(q, id)
  local it = q.requests[id]
  if it == nil then
    if q.raw['r' .. id] == nil then fetch(q, { 'r' .. id, 'n' .. id, 'p' .. id }) end
    local raw = get(q, 'r' .. id)
    it = false
    if raw then
      local from
      it = {}
      it.gateway, it.ticket, it.deadline, it.at, it.cost, it.class, it.called, it.tenant, it.like, from =
        unpack_from(REQUEST, raw)
      it.grants, it.called = string.sub(raw, from), it.called == 1
    end
    q.requests[id] = it
  end
  return it or nil
end

local function put_request(q, id, it)
  q.requests[id] = it or false
  put(q, 'r' .. id, it and pack(REQUEST, it.gateway, it.ticket, it.deadline, it.at, it.cost, it.class, it.called and 1 or 0,
    #it.tenant, it.tenant, #it.like, it.like) .. it.grants)
end

local function next_of(q, id)
  local raw = get(q, 'n' .. id)
  if raw then return unpack_from('<dd', raw) end
end

local function put_next(q, id, next, cost) put(q, 'n' .. id, next and pack('<dd', next, cost)) end

local function previous_of(q, id)
  local raw = get(q, 'p' .. id)
  return raw and unpack_from('<d', raw) or nil
end

local function put_previous(q, id, previous) put(q, 'p' .. id, previous and pack('<d', previous)) end

-- When the last request of a gateway came, and how many of its requests wait.
local function gateway(q, gateway)
  local raw = get(q, 'g' .. id(gateway))
  if raw then return unpack_from('<dd', raw) end
  return nil, 0
end

local function put_gateway(q, gateway, heard, count)
  put(q, 'g' .. id(gateway), count > 0 and pack('<dd', heard, count))
end

-- The bookings, in the order in which they were made.
local function bookings(q)
  if q.booking_list then return q.booking_list end
  local list, raw, from = {}, q.booked > 0 and get(q, 'b') or '', 1
  while from <= #raw do
    local it = {}
    it.at, it.cost, it.class, it.tenant, it.like, it.grant, from = unpack_from(BOOKING, raw, from)
    list[#list + 1] = it
  end
  q.booking_list = list
  return list
end

local function put_bookings(q, list)
  local parts = {}
  for i, it in ipairs(list) do
    parts[i] = pack(BOOKING, it.at, it.cost, it.class, #it.tenant, it.tenant, #it.like, it.like, it.grant)
  end
  q.booking_list, q.booked, q.changed = list, #list, true
  put(q, 'b', #list > 0 and table.concat(parts))
end

-- Lets the keys live until a request with this deadline is gone.
local function keep_until(q, deadline)
  if deadline <= q.expires then return end
  q.expires = deadline + LIFE
  q.until_ms = lifetime(q.expires - now)
end

-- Makes room for a queue: the keys may have a value that was lost.
local function begin(q)
  if not q.is_new then return end
  redis.call('DEL', q.hash, q.order)
  q.is_new = false
end

-- After an entry: nothing is kept of a queue in which no request waits.
local function settle(q)
  if q.len > 0 or q.is_new then return end
  redis.call('DEL', q.hash, q.order)
  clear(q)
end

local function save(q)
  if q.is_new or not q.changed then return end
  local first, second, third = q[1], q[2], q[3]
  local meta = pack(META, VERSION, q.born, q.last, q.len, q.first, q.expires, q.next_look,
    first.now, first.weight, first.passed, first.tenants, first.next,
    second.now, second.weight, second.passed, second.tenants, second.next,
    third.now, third.weight, third.passed, third.tenants, third.next,
    q.booked, q.lapse, q.last_booked, q.room)
  local set, gone = { 'm', meta }, {}
  for field in pairs(q.dirty) do
    local raw = q.raw[field]
    if raw then
      set[#set + 1], set[#set + 2] = field, raw
    else
      gone[#gone + 1] = field
    end
    -- Lua passes a few thousand arguments at most.
    if #set >= 1000 then
      redis.call('HSET', q.hash, unpack(set))
      set = {}
    end
    if #gone >= 1000 then
      redis.call('HDEL', q.hash, unpack(gone))
      gone = {}
    end
  end
  if #set > 0 then redis.call('HSET', q.hash, unpack(set)) end
  if #gone > 0 then redis.call('HDEL', q.hash, unpack(gone)) end
  if q.until_ms then
    redis.call('PEXPIRE', q.hash, q.until_ms)
    redis.call('PEXPIRE', q.order, q.until_ms)
  end
end
-- As locals they cost half of what fields cost that are added one by one.
return {
  open = open, id = id, number = number, fetch = fetch, tenant = tenant, put_tenant = put_tenant, request = request,
  put_request = put_request, next_of = next_of, put_next = put_next, previous_of = previous_of,
  put_previous = put_previous, gateway = gateway, put_gateway = put_gateway, bookings = bookings,
  put_bookings = put_bookings, keep_until = keep_until, begin = begin, settle = settle, save = save,
}
end
