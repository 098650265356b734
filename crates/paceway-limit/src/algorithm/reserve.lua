-- The loop over a request's limiters: all of them are charged at one common instant, or none is. Twin of
-- reserve.rs.
--
-- A want is what a request wants of one limiter:
--   state, cost, enforce
--   is_permits   whether the limiter enforces permits of a rate
--   start        where its permits begin, as `earliest` answered
--   turn         of a request that waits for a concurrency permit in turns

-- The first instant from `from` on at which all enforcing rate limiters can grant, and the limiter that made
-- it so late.
local function common(wants, from)
  local at, bound, enforcing = from, 1, 0
  for i = 1, #wants do
    if wants[i].is_permits then enforcing = enforcing + 1 end
  end
  repeat
    local later = false
    for i = 1, #wants do
      local want = wants[i]
      if want.is_permits then
        local earliest, start = earliest_of(want, at > MAX_BUDGET and MAX_BUDGET or at)
        want.start = start
        if earliest > at then at, bound, later = earliest, i, true end
      end
    end
  until not later or enforcing <= 1
  return at, bound
end

local function take(wants, at, budget, ticket)
  local parts = {}
  for i = 1, #wants do
    local want = wants[i]
    local state, enforce = want.state, want.enforce
    local algorithm, open = state.algorithm, state.open
    if algorithm.lease then
      if ticket and enforce and at > 0 then
        parts[i] = { -2, 0, 0, 0, 0 }
      elseif ticket and (enforce or ticket.deadline < 0 or algorithm.is_free(open, ticket)) then
        parts[i] = { 0, algorithm.hold_for(open, ticket) }
        state.dirty = true
      else
        parts[i] = { -1, 0, 0, 0, 0 }
      end
    elseif enforce then
      if open.gate then
        parts[i] = { at, lazy.gates.take(open.gate, algorithm, open, want.start, want.cost) }
      else
        parts[i] = { at, algorithm.take(open, want.start, want.cost) }
      end
      if at > 0 and algorithm.promise then algorithm.promise(open, at, want.start) end
      state.dirty = true
    else
      local would, start = algorithm.earliest(open, 0, want.cost)
      if would > budget or open.longest_wait and lazy.own_queues.excess(want, 0) > 0 then
        parts[i] = { -1, 0, 0, 0, 0 }
      else
        parts[i] = { would, algorithm.take(open, start, want.cost) }
        state.dirty = true
      end
    end
  end
  return parts
end

-- Returns at, retry_after, bound, parts, deadline, ask_after.
local function decide(wants, budget, ticket)
  if budget > MAX_BUDGET then budget = MAX_BUDGET end
  local at, bound = common(wants, 0)
  local retry_after, has_queue, has_lease = at > budget and at - budget or 0, false, false
  for i = 1, #wants do
    local want = wants[i]
    if want.enforce then
      if not want.is_permits then has_lease = true elseif want.state.open.longest_wait then has_queue = true end
    end
  end
  if has_queue then retry_after, bound = lazy.own_queues.fitting_all(wants, budget, retry_after, bound) end
  if retry_after > 0 then return at, retry_after, bound, nil end
  local full, deadline, ask_after, retry = true, nil, nil, nil
  if ticket and has_lease then full, deadline, ask_after, retry = lazy.concurrent(wants, budget, at, ticket) end
  if full == true then return at, 0, bound, take(wants, at, budget, ticket) end
  return at, deadline and 0 or retry, full, nil, deadline, ask_after
end
