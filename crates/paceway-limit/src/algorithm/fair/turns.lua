-- The order in which waiting requests take the slots of a limiter. Twin of turns.rs and turns/class.rs, which explain it. A tenant is
-- known by its `member`: its class and its name.

local common, stored = require 'common', require 'fair.stored'
local M = {}

local floor, max, min, sub = math.floor, math.max, math.min, string.sub
local PERMIT, PATIENCE, LATEST, FAR, MOST = 1000000, 19, 2 ^ 47, 2 ^ 46, 1000000
local MAX_WEIGHT, MAX_TENANTS, OTHERS = 1000, 1024, ''
-- The tenants that are looked at for a request whose turn it is, and those that start in one step.
local TENANTS, PIECE = 8, 16
-- The tenants of a class in the sorted set: those that would have started, later ones, and those that wait for nothing.
local RANGE, STARTED, LATER, IDLE = 2 ^ 49, 0, 1, 2

local function base(class, kind) return (class * 3 + kind - 12) * RANGE end

local function between(q, class, from, to, ...)
  return stored.ordered(q, 'ZRANGEBYSCORE', base(class, from), base(class, to) + RANGE - 1, ...)
end

local function span(weight, cost) return (cost > MOST and MOST or cost) * -floor(-PERMIT / weight) end

local function enter(q, class, member, tenant)
  local c, start = q[class], tenant.start
  c.started = false
  if tenant.waiting == 0 then return stored.set_score(q, base(class, IDLE) + start, member) end
  if start <= c.now then
    return stored.set_score(q, base(class, STARTED) + start + span(tenant.weight, tenant.head_cost), member)
  end
  stored.set_score(q, base(class, LATER) + start, member)
  if start < c.next then c.next = start end
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
      if #started == 0 and not moved then c.now = max(c.now, start) end
      if start > c.now then
        c.next = start
        break
      end
      local tenant = stored.tenant(q, later[i])
      if tenant then enter(q, class, later[i], tenant) else stored.ordered(q, 'ZREM', later[i]) end
      moved = true
      if i + 2 > 2 * PIECE then c.next = c.now end
    end
    if #later == 0 then break end
  end
  if moved then started = between(q, class, STARTED, STARTED, 'LIMIT', 0, TENANTS) end
  c.started = started
  return started
end

local function remove_tenants(q, class, members)
  stored.remove(q, members)
  for _, member in ipairs(members) do stored.put_tenant(q, member, nil) end
  q[class].tenants, q[class].started = q[class].tenants - #members, false
end

local function count_tenants(q) return q[1].tenants + q[2].tenants + q[3].tenants end

local function forget_idle(q, class)
  local first = base(class, IDLE)
  remove_tenants(q, class, stored.ordered(q, 'ZRANGEBYSCORE', first, first + q[class].now))
end

-- Moves the virtual time back to zero, and all starts with it.
local function begin_again(q, class)
  local c = q[class]
  local by, members = c.now, between(q, class, STARTED, IDLE)
  c.now, c.next, c.started = 0, math.huge, false
  for _, member in ipairs(members) do
    local tenant = stored.tenant(q, member)
    if tenant then
      tenant.start = max(tenant.start - by, 0)
      stored.put_tenant(q, member, tenant)
      enter(q, class, member, tenant)
    end
  end
end

-- Adds a request that waits from now on. One whose number is smaller than those of its tenant comes before them. Returns the
-- tenant that it counts for.
function M.add(q, class, name, weight, number, cost)
  local c, member = q[class], stored.member(class, name)
  local tenant = stored.tenant(q, member)
  if not tenant and count_tenants(q) >= MAX_TENANTS then
    for other = 1, 3 do forget_idle(q, other) end
    if count_tenants(q) >= MAX_TENANTS then
      name, member = OTHERS, stored.member(class, OTHERS)
      tenant = stored.tenant(q, member)
    end
  end
  if not tenant then
    tenant = { weight = 1, start = c.now, waiting = 0, granted = 0, head = 0, head_cost = 0, tail = 0 }
    c.tenants = c.tenants + 1
  end
  if weight > MAX_WEIGHT then weight = MAX_WEIGHT elseif weight < 1 then weight = 1 end
  tenant.waiting = tenant.waiting + 1
  local is_first, before = tenant.waiting == 1 or number < tenant.head, tenant.weight
  if tenant.waiting == 1 then
    tenant.tail, tenant.start, before = number, max(tenant.start, c.now), 0
  elseif is_first then
    stored.put_next(q, stored.id(number), tenant.head, tenant.head_cost)
    stored.put_previous(q, stored.id(tenant.head), number)
  else
    stored.put_next(q, stored.id(tenant.tail), number, cost)
    stored.put_previous(q, stored.id(number), tenant.tail)
    tenant.tail = number
  end
  if is_first then tenant.head, tenant.head_cost = number, cost end
  tenant.weight, c.weight = weight, c.weight + weight - before
  if is_first or weight ~= before then enter(q, class, member, tenant) end
  stored.put_tenant(q, member, tenant)
  return name
end

-- Takes a request out of those of its tenant. The queue deletes the links of the request when it forgets it.
local function take(q, id, tenant)
  local next, cost = stored.next_of(q, id)
  local previous = stored.previous_of(q, id)
  if previous then
    stored.put_next(q, stored.id(previous), next, cost)
  else
    tenant.head, tenant.head_cost = next or 0, cost or 0
  end
  if next then stored.put_previous(q, stored.id(next), previous) else tenant.tail = previous or 0 end
  tenant.waiting = tenant.waiting - 1
end

local function left(q, class, member, tenant)
  local c = q[class]
  if tenant.waiting == 0 then c.weight = c.weight - tenant.weight end
  if c.weight == 0 then
    remove_tenants(q, class, c.tenants > 1 and between(q, class, STARTED, IDLE) or { member })
    c.now, c.passed, c.tenants, c.next = 0, 0, 0, math.huge
  elseif tenant.waiting == 0 and tenant.start <= c.now then
    remove_tenants(q, class, { member })
  else
    stored.put_tenant(q, member, tenant)
    enter(q, class, member, tenant)
  end
end

local function highest(q)
  return q[1].weight > 0 and 1 or q[2].weight > 0 and 2 or q[3].weight > 0 and 3 or nil
end

-- The highest class of the requests that wait, and of one that has had its turn.
function M.most_urgent(q, class) return min(highest(q) or class, class) end

-- The first tenants of the class whose turn it is, among those that would have started, one after the other: the highest with
-- a waiting request, or a lower one that has waited for long enough.
function M.firsts(q)
  local first = highest(q)
  local found = first
  for class = (first or 3) + 1, 3 do
    local passed = q[class].passed
    if passed >= PATIENCE and (found == first or passed >= q[found].passed) then found = class end
  end
  return found and advance(q, found) or {}
end

function M.serve(q, id, request)
  local class, cost, first = request.class, request.cost, highest(q)
  local c, member = q[class], stored.member(class, request.tenant)
  advance(q, class)
  local tenant = stored.tenant(q, member)
  if not tenant then return end
  take(q, id, tenant)
  tenant.start = min(tenant.start + span(tenant.weight, cost), c.now + FAR)
  tenant.granted = tenant.granted + cost
  c.now = c.now + floor(min(cost, MOST) * PERMIT / max(c.weight, 1))
  left(q, class, member, tenant)
  if c.now >= LATEST then begin_again(q, class) end
  for i = 1, 3 do
    local other = q[i]
    local is_lower = first and i > first and other.weight > 0
    if is_lower and i == class then
      other.passed = min(other.passed, PATIENCE * cost) - PATIENCE * cost
    elseif is_lower then
      other.passed = other.passed + cost
    else
      other.passed = 0
    end
  end
end

function M.remove(q, id, request)
  local member = stored.member(request.class, request.tenant)
  local tenant = stored.tenant(q, member)
  if not tenant then return end
  take(q, id, tenant)
  left(q, request.class, member, tenant)
end

function M.permits_between(q, class, name, weight)
  local first = highest(q)
  if first and class > first then return 1 + PATIENCE end
  local tenant, others = stored.tenant(q, stored.member(class, name)), q[class].weight
  if tenant and tenant.waiting > 0 then others = others - tenant.weight end
  return 1 + max(common.ceil_div(others, min(max(weight, 1), MAX_WEIGHT)), 1)
end

-- The tenants with waiting requests, and those that are ahead of their shares, with their names and classes.
function M.known(q)
  local known, members = {}, {}
  if not q.is_new then members = stored.ordered(q, 'ZRANGEBYSCORE', '-inf', '(0') end
  for _, member in ipairs(members) do
    local tenant = stored.tenant(q, member)
    if tenant then tenant.name, tenant.class, known[#known + 1] = sub(member, 2), tonumber(sub(member, 1, 1)), tenant end
  end
  return known
end

return M
