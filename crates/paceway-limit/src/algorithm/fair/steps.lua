-- The steps of requests that take turns at a limiter. Twin of store/memory/turns.rs.

local function make_steps()
local queue, steps = queues_of_call(), {}
local GRANT = '<dddd'

-- The text by which requests are alike: the cost at the queue's limiter, and the costs and keys of the other limiters.
local function like_of(wants, at)
  local like = string.format('%.0f', wants[at].cost)
  for w, want in ipairs(wants) do
    if w ~= at and is_permits(want) then like = like .. string.format(' %.0f ', want.cost) .. want.state.key end
  end
  return like
end

-- The permits of a slot by the limiters of a request: whole ticks born aux, or nil for one that gave none.
local function permits_of(wants, grants)
  local permits, from = {}, 1
  for w, want in ipairs(wants) do
    if is_permits(want) and from <= #grants then
      local whole, ticks, born, aux, next = struct.unpack(GRANT, grants, from)
      permits[w], from = { whole, ticks, born, aux }, next
    end
  end
  return permits
end

-- Refunds the permits of a slot to the limiters of a request. Waiting requests may get them.
local function refund_to(wants, q)
  return function(grants)
    q.room = 1
    for w, permits in pairs(permits_of(wants, grants)) do
      give_back(wants[w].state, wants[w].cost, unpack(permits))
    end
  end
end

-- Refunds the permits of a booking.
local function refund_booking(want)
  return function(cost, grant) give_back(want.state, cost, struct.unpack(GRANT, grant)) end
end

-- After a step the requests with the last slots get free permits, and nothing is kept of a queue in which none waits.
local function settle(q, want)
  queue.fill(q, want.state)
  if q.len == 0 then queue.lapse(q, refund_booking(want)) end
  queue.settle(q)
end

-- Notes until when a limiter of the requests is paused, 0 if none is: no request is given a slot
-- before that.
local function close(q, wants)
  q.closed = 0
  for _, want in ipairs(wants) do
    local gate = is_permits(want) and want.state.open.gate
    if gate then q.closed = math.max(q.closed, gate.stop) end
  end
end

local function has_lease(wants)
  for _, want in ipairs(wants) do
    if want.enforce and want.state.algorithm.lease then return true end
  end
  return false
end

-- The parts of a request that waits at this place, with those of the limiters whose permits are not exchanged.
local function push_place(wants, at, wait, number, parts)
  for w, want in ipairs(wants) do
    if w == at then
      push(wait, number, 0, -1, 0)
    elseif parts and not is_permits(want) then
      push(unpack(parts[w]))
    else
      push(-1, 0, 0, 0, 0)
    end
  end
end

-- Decides a request that takes its turn at the limiter of want `at`.
function steps.decide(k, at, newcomer, wants, budget, ticket)
  local fields = queue.fields_of_newcomer(newcomer.class, newcomer.tenant, newcomer.gateway)
  local q = queue.open(k, wants[at].state.horizon, fields)
  if not q then return push(-1, k) end
  local refund, own = refund_booking(wants[at]), wants[at].state
  close(q, wants)
  budget = math.min(budget, MAX_BUDGET)
  queue.forget_overdue(q)
  queue.lapse(q, refund)
  queue.fill(q, own)
  local most = queue.is_full(q) and math.min(budget, 0) or budget
  newcomer.deadline, newcomer.like, newcomer.cost = now + budget, like_of(wants, at), wants[at].cost
  queue.claim(q, newcomer.deadline, newcomer, refund)
  local chain, outcome = {}, { decide(wants, most, ticket) }
  local first, parts = outcome[1], outcome[4]
  local is_too_late = not parts and first > most and most > 0 and not has_lease(wants)
  if is_too_late then
    -- Other requests make room for it.
    local moved, limit = queue.chain(q, newcomer.deadline, newcomer.like, now + first, {})
    local again = moved and { decide(wants, limit - now, ticket) }
    if again and again[4] then
      chain, outcome, first, parts = moved, again, again[1], again[4]
    end
  end
  if parts and first > 0 then
    local grants = {}
    for w, want in ipairs(wants) do
      local part = parts[w]
      if is_permits(want) then grants[#grants + 1] = struct.pack(GRANT, part[2], part[3], part[4], part[5]) end
    end
    local number, slot = queue.join(q, newcomer, chain, { at = now + first, grants = table.concat(grants) })
    local bound = outcome[3]
    push_decision(1, slot - now, 0, bound, level_of_want(wants[bound]))
    push_place(wants, at, slot - now, number, parts)
  else
    local from = #reply
    push_decided(wants, unpack(outcome, 1, 6))
    local is_its_own = is_too_late and not parts and outcome[3] == at and not own.open.gate
    if is_its_own and queue.has_cheaper(q, newcomer.deadline, newcomer.cost) then
      local back = queue.book(q, own, newcomer, budget, outcome[2])
      if back then reply[from + 3] = back end
    end
  end
  settle(q, wants[at])
end

-- Decides whether a request with this place is sent in its slot or yields it.
function steps.confirm(k, at, number, wants)
  local q = queue.open(k, wants[at].state.horizon, queue.fields_of(number))
  if not q then return push(-1, k) end
  close(q, wants)
  queue.lapse(q, refund_booking(wants[at]))
  local slot, grants = queue.confirm(q, number, refund_to(wants, q))
  settle(q, wants[at])
  -- It may have moved up since.
  if slot and not grants then slot = queue.at(q, number) or slot end
  local function push_wait(code, wait) push_decision(code, wait, 0, at, level_of_want(wants[at])) end
  if not slot then return push_wait(0, 0) end
  local wait = math.max(slot - now, 0)
  if not grants then
    push_wait(1, wait)
    return push_place(wants, at, wait, number)
  end
  push_wait(1, slot - now)
  local permits = permits_of(wants, grants)
  for w = 1, #wants do
    if permits[w] then push(wait, unpack(permits[w])) else push(-1, 0, 0, 0, 0) end
  end
end

-- Removes a request from the queue.
function steps.leave(k, at, number, wants)
  local q = queue.open(k, wants[at].state.horizon, queue.fields_of(number))
  if not q then return push(-1, k) end
  close(q, wants)
  queue.lapse(q, refund_booking(wants[at]))
  push(queue.leave(q, number, refund_to(wants, q)) and 1 or 0)
  settle(q, wants[at])
end

-- The tenants of a limiter.
function steps.tenants(k, horizon)
  local q = queue.open(k, horizon, {})
  if not q then return push(-1, k) end
  local known = queue.known(q)
  push(#known)
  for _, tenant in ipairs(known) do push(unpack(tenant)) end
end

return steps
end
