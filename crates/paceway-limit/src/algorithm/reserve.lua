-- The loop over a request's limiters: all of them are charged at one common instant, or none is. Twin of reserve.rs.
--
-- A want is what a request wants of one limiter: its state, cost and `enforce`; `is_permits`, whether it enforces permits of a rate;
-- `start`, where they begin; `turn` (class, weight, tenant); `kept`, the permits that it leaves to others; and `free`, whether it has a
-- concurrency permit for it.

local call, common, states = require 'call', require 'common', require 'state'
local M = {}

local MAX_BUDGET, max, min, earliest_of = common.MAX_BUDGET, math.max, math.min, states.earliest
local RETRY = 1000000
local KEPT = 500000

local function common_instant(wants, from)
  local at, bound, enforcing, has_queue = from, 1, 0, nil
  for i = 1, #wants do
    local want = wants[i]
    if want.is_permits then enforcing, has_queue = enforcing + 1, has_queue or want.state.open.longest_wait end
  end
  repeat
    local later = false
    for i = 1, #wants do
      local want = wants[i]
      if want.is_permits then
        local earliest, start = earliest_of(want.state, true, at > MAX_BUDGET and MAX_BUDGET or at, want.cost, want.kept)
        want.start = start
        if earliest > at then at, bound, later = earliest, i, true end
      end
    end
  until not later or enforcing <= 1
  return at, bound, has_queue
end

local function excess(want, from)
  local open = want.state.open
  local longest = open.longest_wait
  if not longest then return 0 end
  local earliest = earliest_of(want.state, want.enforce, min(from, MAX_BUDGET), want.cost, want.kept)
  local paused = open.gate and want.enforce and open.gate.stop - call.now or 0
  if earliest - max(from, paused) > longest then return earliest - from - longest end
  return 0
end

local function fitting_all_queues(wants, budget, retry_after, bound)
  while true do
    local before = retry_after
    for i = 1, #wants do
      local more = wants[i].is_permits and excess(wants[i], retry_after) or 0
      if more > 0 then retry_after, bound = retry_after + more, i end
    end
    if retry_after == before then return retry_after, bound end
    local at, i = common_instant(wants, retry_after)
    if at - budget > retry_after then retry_after, bound = at - budget, i end
  end
end

-- The instant of a request at limiters that enforce permits of rates, how much later than its budget that is, and which bound.
function M.slot(wants, budget, from)
  local at, bound, has_queue = common_instant(wants, from or 0)
  local retry_after = at > budget and at - budget or 0
  if has_queue then retry_after, bound = fitting_all_queues(wants, budget, retry_after, bound) end
  return at, retry_after, bound
end

-- Whether a concurrency limiter that enforces has a free permit for the request.
function M.has_permit(want, ticket)
  local algorithm, open = want.state.algorithm, want.state.open
  return not open.gate and algorithm.is_free(open, ticket, want.kept)
end

-- Whether every concurrency limiter has a free permit: true; or the want that has none and, when it may wait for one, until when and
-- when to ask again; else the wait until the next try.
local function concurrent(wants, budget, at, ticket)
  local taken
  for i = 1, #wants do
    local want = wants[i]
    local algorithm, open = want.state.algorithm, want.state.open
    if want.enforce and algorithm.lease then
      want.free = (open.gate and algorithm.holds or algorithm.is_free)(open, ticket, want.kept)
      if open.gate or not want.free then taken = taken or i end
    end
  end
  if not taken and at <= KEPT then return true end
  for i = 1, #wants do
    local state = wants[i].state
    if wants[i].free then
      state.algorithm.refund(state.open, ticket.gateway, ticket.number, ticket.deadline)
      state.dirty = true
    end
  end
  if not taken then return true end
  local algorithm, open = wants[taken].state.algorithm, wants[taken].state.open
  local deadline, ask_after
  if budget > 0 then deadline, ask_after = algorithm.enqueue(open, ticket, budget, wants[taken].turn, wants[taken].kept) end
  if deadline then return taken, deadline, ask_after end
  if not open.gate then return taken, nil, nil, RETRY end
  algorithm.refund(open, ticket.gateway, ticket.number, ticket.deadline)
  return taken, nil, nil, max(open.gate.stop - call.now, algorithm.has_room(open) and 1 or RETRY)
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
      elseif ticket and (enforce or ticket.deadline < 0 or algorithm.is_free(open, ticket, want.kept)) then
        parts[i] = { 0, algorithm.hold_for(open, ticket) }
        state.dirty = true
      else
        parts[i] = { -1, 0, 0, 0, 0 }
      end
    elseif enforce then
      parts[i] = { at, states.take(state, want.start, want.cost, at) }
      if at > 0 and algorithm.promise then algorithm.promise(open, at, want.start, want.kept) end
    else
      local would, start = algorithm.earliest(open, 0, want.cost)
      if would > budget or open.longest_wait and excess(want, 0) > 0 then
        parts[i] = { -1, 0, 0, 0, 0 }
      else
        parts[i] = { would, algorithm.take(open, start, want.cost) }
        state.dirty = true
      end
    end
  end
  return parts
end

-- Returns at, retry_after, bound, parts, deadline, ask_after. The instant is no earlier than `from`, 0 by default.
function M.decide(wants, budget, ticket, from)
  if budget > MAX_BUDGET then budget = MAX_BUDGET end
  local at, retry_after, bound = M.slot(wants, budget, from)
  if retry_after > 0 then return at, retry_after, bound, nil end
  local full, deadline, ask_after, retry = true, nil, nil, nil
  if ticket then full, deadline, ask_after, retry = concurrent(wants, budget, at, ticket) end
  if full == true then return at, 0, bound, take(wants, at, budget, ticket) end
  return at, deadline and 0 or retry, full, nil, deadline, ask_after
end

function M.tightest(wants)
  local bound, least, next, reset, paused, rate, since, status = 1, states.level(wants[1].state, wants[1].enforce)
  for i = 2, wants[1].is_permits and #wants or 0 do
    if wants[i].is_permits then
      local remaining, its_next, its_reset, its_pause, its_rate, its_since, its_status = states.level(wants[i].state, true)
      if remaining < least then
        bound, least, next, reset = i, remaining, its_next, its_reset
        paused, rate, since, status = its_pause, its_rate, its_since, its_status
      end
    end
  end
  return bound, least, next, reset, paused, rate, since, status
end

return M
