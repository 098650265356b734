-- The order in which waiting requests take the slots of a limiter. Twin of turns.rs, which explains it: same names, same
-- order, same arithmetic.

local function make_turns(stored)
local turns, floor = {}, math.floor
local PERMIT, MAX_WEIGHT, MAX_TENANTS, PATIENCE = 1000000, 1000, 1024, 19
local LATEST, FAR, MOST = 2 ^ 47, 2 ^ 46, 1000000
local OTHERS = ''
-- The tenants that are looked at for a request whose turn it is, the requests of each, as in queue.rs, and the tenants that start
-- in one step.
local TENANTS, REQUESTS, PIECE = 8, 8, 16
-- The tenants of a class in the sorted set: those that would have started, later ones, and those that wait for nothing.
local RANGE, STARTED, LATER, IDLE = 2 ^ 49, 0, 1, 2

local function base(class, kind) return (class * 3 + kind - 12) * RANGE end

local function between(q, class, from, to, ...)
  return redis.call('ZRANGEBYSCORE', q.order, base(class, from), base(class, to) + RANGE - 1, ...)
end

local function span(weight, cost) return math.min(cost, MOST) * ceil_div(PERMIT, weight) end

local function enter(q, class, name, tenant)
  local c, score = q[class], nil
  if tenant.start <= c.now then
    score = base(class, STARTED) + tenant.start + span(tenant.weight, tenant.head_cost)
  else
    score = base(class, LATER) + tenant.start
    c.next = math.min(c.next, tenant.start)
  end
  redis.call('ZADD', q.order, score, class .. name)
  c.started = nil
end

local function remove_members(q, class, members)
  for from = 1, #members, 1000 do
    redis.call('ZREM', q.order, unpack(members, from, math.min(from + 999, #members)))
  end
  for _, member in ipairs(members) do stored.put_tenant(q, class, string.sub(member, 2), nil) end
  q[class].tenants, q[class].started = q[class].tenants - #members, nil
end

-- Forgets tenants without waiting requests that are not ahead of their shares any more.
local function forget_idle(q, class)
  local first = base(class, IDLE)
  local members = redis.call('ZRANGEBYSCORE', q.order, first, first + q[class].now)
  if #members > 0 then remove_members(q, class, members) end
end

-- Moves the virtual time at least to the first start, and lets all tenants start whose start has come. Returns the first
-- tenants that would have started.
local function advance(q, class)
  local c = q[class]
  if c.started then return c.started end
  if c.weight == 0 then return {} end
  local started = between(q, class, STARTED, STARTED, 'LIMIT', 0, TENANTS)
  local moved = false
  while #started == 0 and not moved or c.next <= c.now do
    local later = between(q, class, LATER, LATER, 'WITHSCORES', 'LIMIT', 0, PIECE)
    c.next = math.huge
    for i = 1, #later, 2 do
      local start = tonumber(later[i + 1]) - base(class, LATER)
      if #started == 0 and not moved then c.now = math.max(c.now, start) end
      if start > c.now then
        c.next = start
        break
      end
      local name = string.sub(later[i], 2)
      local tenant = stored.tenant(q, class, name)
      if tenant then enter(q, class, name, tenant) else redis.call('ZREM', q.order, later[i]) end
      moved = true
      if i + 2 > 2 * PIECE then c.next = c.now end
    end
    if #later == 0 then break end
  end
  if moved then started = between(q, class, STARTED, STARTED, 'LIMIT', 0, TENANTS) end
  c.started = started
  return started
end

-- Moves the virtual time back to zero, and all starts with it.
local function begin_again(q, class)
  local c = q[class]
  local by, members = c.now, between(q, class, STARTED, IDLE)
  c.now, c.next, c.started = 0, math.huge, nil
  for _, member in ipairs(members) do
    local name = string.sub(member, 2)
    local tenant = stored.tenant(q, class, name)
    if tenant then
      tenant.start = math.max(tenant.start - by, 0)
      stored.put_tenant(q, class, name, tenant)
      if tenant.waiting > 0 then
        enter(q, class, name, tenant)
      else
        redis.call('ZADD', q.order, base(class, IDLE) + tenant.start, member)
      end
    end
  end
end

-- Sorts a tenant in again after one of its requests has left.
local function left(q, class, name, tenant)
  local c = q[class]
  if tenant.waiting > 0 then
    stored.put_tenant(q, class, name, tenant)
    return enter(q, class, name, tenant)
  end
  c.weight = c.weight - tenant.weight
  if c.weight == 0 then
    local members = { class .. name }
    if c.tenants > 1 then members = between(q, class, STARTED, IDLE) end
    remove_members(q, class, members)
    c.now, c.passed, c.tenants, c.next = 0, 0, 0, math.huge
  elseif tenant.start <= c.now then
    remove_members(q, class, { class .. name })
  else
    stored.put_tenant(q, class, name, tenant)
    redis.call('ZADD', q.order, base(class, IDLE) + tenant.start, class .. name)
    c.started = nil
  end
end

-- Takes a request out of those of its tenant.
local function take(q, id, tenant)
  local next, cost = stored.next_of(q, id)
  local previous = stored.previous_of(q, id)
  if previous then
    stored.put_next(q, stored.id(previous), next, cost)
  else
    tenant.head, tenant.head_cost = next or 0, cost or 0
  end
  if next then
    stored.put_previous(q, stored.id(next), previous)
  else
    tenant.tail = previous or 0
  end
  if next then stored.put_next(q, id, nil) end
  if previous then stored.put_previous(q, id, nil) end
  tenant.waiting = tenant.waiting - 1
end

local function tenants(q) return q[1].tenants + q[2].tenants + q[3].tenants end

-- Adds a request that waits from now on. One whose number is smaller than those of its tenant comes before them. Returns the
-- tenant that it counts for.
function turns.add(q, class, name, weight, number, cost)
  local c, tenant = q[class], stored.tenant(q, class, name)
  if not tenant then
    if tenants(q) >= MAX_TENANTS then
      for other = 1, 3 do forget_idle(q, other) end
    end
    if tenants(q) >= MAX_TENANTS then
      name = OTHERS
      tenant = stored.tenant(q, class, name)
    end
  end
  if not tenant then
    tenant = { weight = 1, start = c.now, waiting = 0, granted = 0, head = 0, head_cost = 0, tail = 0 }
    c.tenants = c.tenants + 1
  end
  weight = math.min(math.max(weight, 1), MAX_WEIGHT)
  tenant.waiting = tenant.waiting + 1
  if tenant.waiting == 1 then
    tenant.head, tenant.head_cost, tenant.tail = number, cost, number
    tenant.weight, tenant.start = weight, math.max(tenant.start, c.now)
    c.weight = c.weight + weight
    enter(q, class, name, tenant)
  else
    local is_first = number < tenant.head
    if is_first then
      stored.put_next(q, stored.id(number), tenant.head, tenant.head_cost)
      stored.put_previous(q, stored.id(tenant.head), number)
      tenant.head, tenant.head_cost = number, cost
    else
      stored.put_next(q, stored.id(tenant.tail), number, cost)
      stored.put_previous(q, stored.id(number), tenant.tail)
      tenant.tail = number
    end
    if is_first or tenant.weight ~= weight then
      c.weight = c.weight + weight - tenant.weight
      tenant.weight = weight
      enter(q, class, name, tenant)
    end
  end
  stored.put_tenant(q, class, name, tenant)
  return name
end

local function highest(q)
  for class = 1, 3 do
    if q[class].weight > 0 then return class end
  end
end

-- How many permits all requests together have for one that a tenant of this weight and class has.
function turns.permits_between(q, class, name, weight)
  local first = highest(q)
  if first and class > first then return 1 + PATIENCE end
  local tenant, others = stored.tenant(q, class, name), q[class].weight
  if tenant and tenant.waiting > 0 then others = others - tenant.weight end
  return 1 + math.max(ceil_div(others, math.min(math.max(weight, 1), MAX_WEIGHT)), 1)
end

-- The highest priority with a waiting request, or a lower one that has waited for long enough.
local function turn_of(q)
  local first = highest(q)
  local found = first
  for class = (first or 3) + 1, 3 do
    local passed = q[class].passed
    if passed >= PATIENCE and (found == first or passed >= q[found].passed) then found = class end
  end
  return found
end

-- The first requests of the tenants whose turns come first among those that would have started, one after the other.
function turns.firsts(q)
  local class = turn_of(q)
  if not class then return function() end end
  local started, i, number, seen = advance(q, class), 0, nil, 0
  return function()
    number = number and seen < REQUESTS and stored.next_of(q, stored.id(number)) or nil
    seen = seen + 1
    if not number then
      i = i + 1
      local tenant = started[i] and stored.tenant(q, class, string.sub(started[i], 2))
      number, seen = tenant and tenant.head or nil, 1
    end
    return number
  end
end

-- Records that a request takes a slot, in its turn or out of turn.
function turns.serve(q, id, request)
  local class, cost, first = request.class, request.cost, highest(q)
  local c = q[class]
  advance(q, class)
  local tenant = stored.tenant(q, class, request.tenant)
  if not tenant then return end
  take(q, id, tenant)
  tenant.start = math.min(tenant.start + span(tenant.weight, cost), c.now + FAR)
  tenant.granted = tenant.granted + cost
  c.now = c.now + floor(math.min(cost, MOST) * PERMIT / math.max(c.weight, 1))
  c.started = nil
  left(q, class, request.tenant, tenant)
  if c.now >= LATEST then begin_again(q, class) end
  for i = 1, 3 do
    local other = q[i]
    local is_lower = first and i > first and other.weight > 0
    if is_lower and i == class then
      other.passed = math.min(other.passed, PATIENCE * cost) - PATIENCE * cost
    elseif is_lower then
      other.passed = other.passed + cost
    else
      other.passed = 0
    end
  end
end

-- Removes a request that waits no longer.
function turns.remove(q, id, request)
  local tenant = stored.tenant(q, request.class, request.tenant)
  if not tenant then return end
  take(q, id, tenant)
  left(q, request.class, request.tenant, tenant)
end

-- The tenants with waiting requests, and those that are ahead of their shares: name, class, weight, number of waiting
-- requests, permits granted.
function turns.known(q)
  local known, members = {}, {}
  if not q.is_new then members = redis.call('ZRANGEBYSCORE', q.order, '-inf', '(0') end
  for _, member in ipairs(members) do
    local class, name = tonumber(string.sub(member, 1, 1)), string.sub(member, 2)
    local tenant = stored.tenant(q, class, name)
    if tenant then known[#known + 1] = { name, class, tenant.weight, tenant.waiting, tenant.granted } end
  end
  return known
end
return turns
end
