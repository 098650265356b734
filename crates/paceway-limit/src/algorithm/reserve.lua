-- The loop over a request's limiters: all of them are charged at one common instant, or none is. Twin of
-- reserve.rs.

-- A request that is granted a concurrency permit keeps it while it waits for rate permits, if that wait is at
-- most this long, µs.
local KEPT = 500000

local function is_permits(want) return want.enforce and not want.state.algorithm.lease end

-- By how much a request that comes at `from` would wait longer in this limiter alone than its queue allows,
-- µs. The wait for the end of a pause is no wait in the queue.
local function excess(want, from)
  local open = want.state.open
  local longest = open.longest_wait
  if not longest then return 0 end
  local earliest = earliest_of(want, math.min(from, MAX_BUDGET))
  local paused = open.gate and want.enforce and open.gate.stop - now or 0
  if earliest - math.max(from, paused) > longest then return earliest - from - longest end
  return 0
end

-- The first instant from `from` on at which all enforcing rate limiters can grant, and the limiter that made
-- it so late.
local function common(wants, from)
  local at, bound, enforcing = from, 1, 0
  for _, want in ipairs(wants) do
    if is_permits(want) then enforcing = enforcing + 1 end
  end
  repeat
    local later = false
    for i, want in ipairs(wants) do
      if is_permits(want) then
        local earliest, start = earliest_of(want, math.min(at, MAX_BUDGET))
        want.start = start
        if earliest > at then at, bound, later = earliest, i, true end
      end
    end
  until not later or enforcing <= 1
  return at, bound
end

-- The first instant from `retry_after` on at which no queue is too long for the request and which is within
-- the budget, and the limiter that made it so late: `bound` when none did.
local function fitting_all_queues(wants, budget, retry_after, bound)
  while true do
    local before = retry_after
    for i, want in ipairs(wants) do
      local more = is_permits(want) and excess(want, retry_after) or 0
      if more > 0 then retry_after, bound = retry_after + more, i end
    end
    if retry_after == before then return retry_after, bound end
    local at, i = common(wants, retry_after)
    if at - budget > retry_after then retry_after, bound = at - budget, i end
  end
end

-- Whether every concurrency limiter has a free permit: true; or the want that has none and, when it may wait
-- for one, until when and when to ask again; else the wait until the next try. A paused limiter has no free
-- permit, not even for a request that was notified.
local function concurrent(wants, budget, at, ticket)
  local taken
  for i, want in ipairs(wants) do
    if want.enforce and want.state.algorithm.lease then
      local algorithm, open = want.state.algorithm, want.state.open
      if open.gate then
        -- A request that waits in the queue of a paused limiter keeps its place.
        want.free = algorithm.holds(open, ticket)
        taken = taken or i
      else
        want.free = algorithm.is_free(open, ticket)
        if not want.free then taken = taken or i end
      end
    end
  end
  if not taken and at <= KEPT then return true end
  for _, want in ipairs(wants) do
    if want.free then
      want.state.algorithm.refund(want.state.open, ticket.gateway, ticket.number, ticket.deadline)
      want.state.dirty = true
    end
  end
  if not taken then return true end
  local algorithm, open = wants[taken].state.algorithm, wants[taken].state.open
  local deadline, ask_after
  if budget > 0 then deadline, ask_after = algorithm.enqueue(open, ticket, budget, wants[taken].turn) end
  if deadline then return taken, deadline, ask_after end
  if not open.gate then return taken, nil, nil, RETRY end
  -- It must not be notified when the pause ends: it is refused now.
  algorithm.refund(open, ticket.gateway, ticket.number, ticket.deadline)
  return taken, nil, nil, math.max(open.gate.stop - now, algorithm.has_room(open) and 1 or RETRY)
end

local function take(wants, at, budget, ticket)
  local parts = {}
  for i, want in ipairs(wants) do
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
        parts[i] = { at, take_behind(open.gate, algorithm, open, want.start, want.cost) }
      else
        parts[i] = { at, algorithm.take(open, want.start, want.cost) }
      end
      state.dirty = true
    else
      local would, start = algorithm.earliest(open, 0, want.cost)
      if would > budget or excess(want, 0) > 0 then
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
  local retry_after
  retry_after, bound = fitting_all_queues(wants, budget, math.max(at - budget, 0), bound)
  if retry_after > 0 then return at, retry_after, bound, nil end
  local full, deadline, ask_after, retry = true, nil, nil, nil
  if ticket then full, deadline, ask_after, retry = concurrent(wants, budget, at, ticket) end
  if full == true then return at, 0, bound, take(wants, at, budget, ticket) end
  return at, deadline and 0 or retry, full, nil, deadline, ask_after
end

-- For a request that no limiter delayed: the rate limiter that has the fewest permits left, among equals the
-- first; and its level.
local function tightest(wants)
  local bound, least, next, reset, paused = 1, level_of_want(wants[1])
  if not is_permits(wants[1]) then return bound, least, next, reset, paused end
  for i = 2, #wants do
    if is_permits(wants[i]) then
      local remaining, its_next, its_reset, its_pause = level_of_want(wants[i])
      if remaining < least then
        bound, least, next, reset, paused = i, remaining, its_next, its_reset, its_pause
      end
    end
  end
  return bound, least, next, reset, paused
end

-- The most grants by which one step lowers a level.
local LOWERINGS = 64

-- Takes permits for now until at most `most` are left of those that can be taken now.
local function lower(state, most)
  local algorithm, open = state.algorithm, state.open
  if algorithm.lease then return end
  local want = { state = state, enforce = true }
  for _ = 1, LOWERINGS do
    want.cost = level_of(state, true) - most
    local start
    -- Permits in several holes are not taken as one grant.
    while not start and want.cost > 0 do
      local at, its_start = earliest_of(want, 0)
      if at <= 0 then start = its_start else want.cost = math.floor(want.cost / 2) end
    end
    if not start then return end
    if open.gate then
      take_behind(open.gate, algorithm, open, start, want.cost)
    else
      algorithm.take(open, start, want.cost)
    end
    state.dirty = true
  end
end

-- Refunds the permits of a grant.
local function give_back(state, cost, whole, ticks, born, aux)
  local algorithm, open = state.algorithm, state.open
  local given = algorithm.refund(open, whole, ticks, born, aux, cost)
  if given then state.dirty, state.opened = true, true end
  if open.gate and refund_behind(open, algorithm, ticks, aux, cost) then state.has_new_gate = true end
  return given
end
