if part == 'tenants' then
-- Tenants that come to nothing, the virtual time that begins again, and questions about tenants. Twin of turns.rs, too.
local stored, turns = lazy.stored, lazy.turns
local PATIENCE, MAX_WEIGHT = 19, 1000

local function remove(q, class, members)
  for from = 1, #members, 1000 do
    stored.ordered(q, 'ZREM', unpack(members, from, math.min(from + 999, #members)))
  end
  for _, member in ipairs(members) do stored.put_tenant(q, class, string.sub(member, 2), nil) end
  q[class].tenants, q[class].started = q[class].tenants - #members, false
end

-- Forgets tenants without waiting requests that are not ahead of their shares any more.
local function forget_idle(q, class)
  local first = turns.base(class, turns.IDLE)
  local members = stored.ordered(q, 'ZRANGEBYSCORE', first, first + q[class].now)
  if #members > 0 then remove(q, class, members) end
end

-- Moves the virtual time back to zero, and all starts with it.
local function begin_again(q, class)
  local c = q[class]
  local by, members = c.now, turns.between(q, class, turns.STARTED, turns.IDLE)
  c.now, c.next, c.started = 0, math.huge, false
  for _, member in ipairs(members) do
    local name = string.sub(member, 2)
    local tenant = stored.tenant(q, class, name)
    if tenant then
      tenant.start = math.max(tenant.start - by, 0)
      stored.put_tenant(q, class, name, tenant)
      if tenant.waiting > 0 then
        turns.enter(q, class, name, tenant)
      else
        stored.set_score(q, turns.base(class, turns.IDLE) + tenant.start, member)
      end
    end
  end
end

-- How many permits all requests together have for one that a tenant of this weight and class has.
local function permits_between(q, class, name, weight)
  local first = turns.highest(q)
  if first and class > first then return 1 + PATIENCE end
  local tenant, others = stored.tenant(q, class, name), q[class].weight
  if tenant and tenant.waiting > 0 then others = others - tenant.weight end
  return 1 + math.max(ceil_div(others, math.min(math.max(weight, 1), MAX_WEIGHT)), 1)
end

-- The tenants with waiting requests, and those that are ahead of their shares, with their names and classes.
local function known(q)
  local known, members = {}, {}
  if not q.is_new then members = stored.ordered(q, 'ZRANGEBYSCORE', '-inf', '(0') end
  for _, member in ipairs(members) do
    local class, name = tonumber(string.sub(member, 1, 1)), string.sub(member, 2)
    local tenant = stored.tenant(q, class, name)
    if tenant then tenant.name, tenant.class, known[#known + 1] = name, class, tenant end
  end
  return known
end
return {
  remove = remove, forget_idle = forget_idle, begin_again = begin_again, permits_between = permits_between, known = known,
}
end
