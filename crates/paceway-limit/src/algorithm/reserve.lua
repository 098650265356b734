-- Executes a batch of entries in order; `decide` is the twin of reserve.rs.
--
--   KEYS[k]   the states, and the epoch; on a cluster the keys of one call share a {hash tag}
--   ARGV[1-3] those of plain.lua
--   ARGV[4..] the entries, each one of
--     D budget n, then n times: k kind cost enforce ARGS…    decide; ARGS are the horizon (how long after a loss of
--                                                            data earlier grants can count) in µs, then the rule's
--     T gateway number deadline, then as D                   the same with a ticket for concurrency permits; deadline
--                                                            -1: it holds one already, which an observing limiter counts
--     R k kind gateway number ARGS…                          renew a lease
--     X k kind ARGS…                                         forget the state
--     G k kind cost whole ticks born aux ARGS…               refund a grant
--     P k kind ARGS…                                         look
--     Z k kind span status ARGS…                             pause for `span` µs, and look
--     M k kind most ARGS…                                    lower the level to `most`, and look
--   reply     that of plain.lua, then (ahead of an epoch) flat integers, for each entry one of
--     D  1 at 0 bound remaining next reset_after, then n times: at whole ticks born aux
--        0 at retry_after bound remaining next reset_after   refused; nothing is written
--        2 at 0 bound remaining next reset_after deadline ask_after   waits for a concurrency permit
--     G, R, X  1 refunded, renewed, forgotten | 0 there was nothing | 2 refunded, and a waiter was notified
--     P, Z, M  1 remaining next reset_after
--     D, P, Z, M of a paused limiter  10 more, and after reset_after the µs that the pause still takes
--     any -1 k                                               KEYS[k] holds a foreign value
--
-- A state is read once and written once per call, however many entries use it.

-- A request that is granted a concurrency permit keeps it while it waits for rate permits, if that wait is at
-- most this long, µs.
local KEPT = 500000
local made = {}

local function algorithm_of(kind)
  local algorithm = made[kind]
  if not algorithm then
    algorithm = make[kind]()
    made[kind] = algorithm
  end
  return algorithm
end

local states, used = {}, {}

local function save(state)
  local gate = state.open.gate
  if state.dirty then state.algorithm.save(state.open, state.key) end
  -- A changed state is written with its gate. One that equals an absent one is not written, and a gate can have ended.
  if state.has_new_gate and not (state.dirty and gate) then replace_gate(state.key, gate, now) end
end

-- The state of KEYS[k], or nil when its value is foreign.
local function open(k, algorithm, rule, horizon)
  local state = states[k]
  if state == nil then
    local opened = algorithm.load(KEYS[k], now, rule, horizon)
    state = false
    if opened then
      state = { key = KEYS[k], algorithm = algorithm, open = opened, dirty = false, horizon = horizon }
      used[#used + 1] = state
    end
    states[k] = state
    return state or nil
  end
  if state then state.open.handed_over = nil end
  if state and not algorithm.same(state.open.rule, rule) then
    -- While gateways get a new configuration, one call can carry both rules.
    save(state)
    state.open = algorithm.load(state.key, now, rule, horizon)
    state.dirty, state.has_new_gate = false, false
  end
  return state or nil
end

-- remaining, next, reset_after, paused
local function level_of(state, enforce)
  local algorithm, open = state.algorithm, state.open
  local gate = open.gate
  if gate and enforce and not algorithm.lease then return level_behind(gate, algorithm, open) end
  local remaining, next, reset_after = algorithm.level(open)
  return remaining, next, reset_after, gate and enforce and gate.stop - open.now or 0
end

local function level_of_want(want) return level_of(want.state, want.enforce) end

local function earliest_of(want, from)
  local algorithm, open = want.state.algorithm, want.state.open
  if open.gate and want.enforce then return earliest_behind(open.gate, algorithm, open, from, want.cost) end
  return algorithm.earliest(open, from, want.cost)
end

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
  if budget > 0 then deadline, ask_after = algorithm.enqueue(open, ticket, budget) end
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

local function push(...)
  for i = 1, select('#', ...) do reply[#reply + 1] = (select(i, ...)) end
end

local function push_decision(code, at, retry_after, bound, remaining, next, reset_after, paused)
  push(paused > 0 and code + 10 or code, at, retry_after, bound, remaining, next, reset_after)
  if paused > 0 then push(paused) end
end

local function push_level(remaining, next, reset_after, paused)
  push(paused > 0 and 11 or 1, remaining, next, reset_after)
  if paused > 0 then push(paused) end
end

-- Pauses a limiter for `span` µs. A pause that ends earlier than the present one changes nothing.
local function pause(state, span, status)
  local open, stop = state.open, now + span
  if state.algorithm.pause then
    if not state.algorithm.pause(open, stop, status) then return end
    state.dirty = true
  else
    if open.gate and stop <= open.gate.stop then return end
    -- Permits that were granted for instants after the later end keep their slots.
    local old, spent = open.gate, 0
    if old then spent = math.max(old.spent - (stop - old.stop) * 1000, 0) end
    local gate = { stop = stop, spent = spent, status = status }
    local algorithm = state.algorithm
    if not old and algorithm.promised_after then
      gate.period, gate.count = algorithm.ramp(open.rule)
      gate.spent = math.min(gate_time(gate, algorithm.promised_after(open, stop - 1)), EXACT - 1)
    end
    gate = open_gate(algorithm, gate, now, open.rule)
    if not gate then return end
    open.gate, state.has_new_gate = gate, true
  end
  publish_pause(state.key, span, status)
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

local i = 4

local function next_arg()
  i = i + 1
  return args[i - 1]
end

local function next_number() return tonumber(next_arg()) end

-- The state that the rule at args[i] asks for.
local function next_state(k, algorithm)
  local horizon, rule = next_number(), algorithm.rule(args, i)
  i = i + algorithm.args
  return open(k, algorithm, rule, horizon)
end

while i <= #args do
  local what = next_arg()
  if what == 'D' or what == 'T' then
    local ticket
    if what == 'T' then
      ticket = { gateway = next_number(), number = next_number(), deadline = next_number() }
    end
    local budget, n = next_number(), next_number()
    local wants, foreign = {}, nil
    for w = 1, n do
      local k, algorithm = next_number(), algorithm_of(next_number())
      local cost, enforce = next_number(), next_arg() == '1'
      local state = next_state(k, algorithm)
      if not state then foreign = foreign or k end
      wants[w] = { state = state, cost = cost, enforce = enforce }
    end
    if foreign then
      push(-1, foreign)
    else
      local at, retry_after, bound, parts, deadline, ask_after = decide(wants, budget, ticket)
      if n > 1 and at == 0 and parts then
        push_decision(1, at, retry_after, tightest(wants))
      else
        local code = parts and 1 or deadline and 2 or 0
        push_decision(code, at, retry_after, bound, level_of_want(wants[bound]))
      end
      if deadline then push(deadline, ask_after) end
      for _, part in ipairs(parts or {}) do push(unpack(part)) end
    end
  elseif what == 'G' then
    local k, algorithm = next_number(), algorithm_of(next_number())
    local cost, whole, ticks = next_number(), next_number(), next_number()
    local born, aux = next_number(), next_number()
    local state = next_state(k, algorithm)
    if not state then
      push(-1, k)
    else
      local given = algorithm.refund(state.open, whole, ticks, born, aux, cost)
      if given then state.dirty, state.opened = true, true end
      if state.open.gate and refund_behind(state.open, algorithm, ticks, aux, cost) then state.has_new_gate = true end
      push(state.open.handed_over and 2 or given and 1 or 0)
    end
  elseif what == 'R' then
    local k, algorithm = next_number(), algorithm_of(next_number())
    local gateway, number = next_number(), next_number()
    local state = next_state(k, algorithm)
    if not state then
      push(-1, k)
    else
      local renewed = algorithm.renew(state.open, gateway, number)
      state.dirty = true
      push(renewed and 1 or 0)
    end
  elseif what == 'X' then
    local k, algorithm = next_number(), algorithm_of(next_number())
    local state = next_state(k, algorithm)
    local gate = state and state.open.gate
    if gate and gate.stop > now then publish_pause(state.key, 0, gate.status) end
    if state and algorithm.forget then
      state.dirty = true
      push(algorithm.forget(state.open) and 1 or 0)
    else
      -- The decisions that this call made on the state before are dropped with it.
      if state then state.dirty, state.has_new_gate = false, false end
      states[k] = nil
      local gone
      if state then
        gone = vacate(algorithm, KEYS[k], now, state.open.rule, state.horizon)
      else
        gone = redis.call('DEL', KEYS[k]) == 1
      end
      push(gone and 1 or 0)
    end
  else
    local k, algorithm = next_number(), algorithm_of(next_number())
    local span, status, most
    if what == 'Z' then span, status = next_number(), next_number() end
    if what == 'M' then most = next_number() end
    local state = next_state(k, algorithm)
    if state and span then pause(state, span, status) end
    if state and most then lower(state, most) end
    if not state then push(-1, k) else push_level(level_of(state, true)) end
  end
end

for _, state in ipairs(used) do
  if state.opened and not state.algorithm.lease then publish_opening(state.key, state.algorithm, state.open) end
  save(state)
end
reply[#reply + 1] = new_epoch
return reply
