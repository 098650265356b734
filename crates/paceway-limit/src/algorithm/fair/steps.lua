-- The steps of requests that take turns at a limiter. Twin of store/memory/turns.rs.

local adjust, bookings, call, common = require 'reserve.adjust', require 'fair.queue.bookings', require 'call', require 'common'
local free_permits, gates, queue = require 'fair.queue.free_permits', require 'gate', require 'fair.queue'
local replies = require 'replies'
local reserve, states, stored, turns = require 'reserve', require 'state', require 'fair.stored', require 'fair.turns'
local M = {}

local pack, unpack, unpack_from = struct.pack, unpack, struct.unpack
local GRANT = '<dddd'

local function like_of(wants, at)
  local cost = wants[at].cost
  local like = cost == 1 and '1' or string.format('%.0f', cost)
  for w = 1, #wants do
    local want = wants[w]
    if w ~= at and want.is_permits then like = like .. string.format(' %.0f ', want.cost) .. want.state.key end
  end
  return like
end

-- The permits of a slot by the limiters of a request, as the parts of a reply: nil for one that gave none.
local function parts_of(wants, grants, wait)
  local parts, from = {}, 1
  for w = 1, #wants do
    if wants[w].is_permits and from <= #grants then
      local whole, ticks, born, aux, next = unpack_from(GRANT, grants, from)
      parts[w], from = { wait, whole, ticks, born, aux }, next
    end
  end
  return parts
end

-- Refunds the permits of a slot to the limiters of a request. Waiting requests may get them.
local function refund_to(wants, q)
  return function(grants)
    q.room, q.changed = 1, true
    for w, permits in pairs(parts_of(wants, grants, 0)) do
      adjust.refund(wants[w].state, wants[w].cost, unpack(permits, 2))
    end
  end
end

-- The queue of the limiter of want `at`, and nil where its key holds a foreign value. It notes until when a limiter of the
-- requests is paused, 0 if none is: no request is given a slot before that.
local function open(wants, at, fields)
  local state = wants[at].state
  local q = queue.open(state.queue, state.horizon, fields)
  if not q then
    replies.push_foreign(state.queue)
    return nil
  end
  local closed = 0
  for w = 1, #wants do
    local gate = wants[w].is_permits and wants[w].state.open.gate
    if gate and gate.stop > closed then closed = gate.stop end
  end
  q.closed = closed
  return q
end

-- After a step the requests with the last slots get free permits, and nothing is kept of a queue in which none waits.
local function settle(q, state)
  if q.room ~= 0 then free_permits(q, state) end
  if q.len > 0 then return end
  bookings.lapse(q, state)
  stored.settle(q)
end

-- The permits of a decision, as a queue keeps them.
local function grants_of(wants, parts)
  local grants = ''
  for w = 1, #wants do
    local part = parts[w]
    if wants[w].is_permits then grants = grants .. pack(GRANT, part[2], part[3], part[4], part[5]) end
  end
  return grants
end

-- Notes what a request of this class leaves to others; returns whether that is anything.
local function keep_back(wants, class)
  local has_floor = false
  for w = 1, #wants do
    local floors = wants[w].state.floors
    wants[w].kept = floors and floors[class] or 0
    has_floor = has_floor or wants[w].kept > 0
  end
  return has_floor
end

-- Whether a request that confirms after its slot is sent with the permits of that slot.
local function is_kept_late(wants, it)
  if it.at >= call.now then return false end
  for w, permits in pairs(parts_of(wants, it.grants, 0)) do
    local state, kept = wants[w].state, wants[w].kept
    local binds = state.algorithm.binds
    local is_bound = not binds or binds(state.open, wants[w].cost, it.at, permits[2], permits[3])
    if kept > 0 and is_bound and states.earliest(state, true, 0, 1, kept - 1) > 0 then return false end
  end
  return true
end

-- Decides a request whose slot comes once more, from the permits that are left by now: it may not be sent below a floor.
local function keep_floors(wants, q, id)
  local it = stored.request(q, id)
  if not it or not queue.is_due(q, it) or not keep_back(wants, turns.most_urgent(q, it.class)) then return end
  for w = 1, #wants do
    local state = wants[w].state
    local gate = not state.algorithm.lease and state.open.gate
    if gate and not gates.takes_back(gate, state.algorithm) then return end
  end
  if is_kept_late(wants, it) then return end
  local rates = {}
  for w, permits in pairs(parts_of(wants, it.grants, 0)) do
    local state, cost = wants[w].state, wants[w].cost
    local binds = state.algorithm.binds
    if binds and not binds(state.open, cost, it.at, permits[2], permits[3]) then wants[w].kept = 0 end
    adjust.give_back(state, cost, unpack(permits, 2))
    state.dirty = true
  end
  for w = 1, #wants do
    -- One that only observes has counted the request.
    if wants[w].is_permits then rates[#rates + 1] = wants[w] end
  end
  local from = math.max(it.at - call.now, 0)
  local function decide(limit)
    local at, _, _, parts = reserve.decide(rates, math.max(limit - call.now, from), nil, from)
    return { at = call.now + at, grants = parts and grants_of(rates, parts) }
  end
  local slot, chain = decide(it.deadline), nil
  if not slot.grants then
    local moved, limit = queue.chain(q, it.deadline, it.like, slot.at, { id })
    if moved then slot, chain = decide(limit), moved end
  end
  if slot.grants then queue.displace(q, id, it, chain, slot) else queue.dismiss(q, id, it) end
end

local function has_lease(wants)
  for w = 1, #wants do
    if wants[w].enforce and wants[w].state.algorithm.lease then return true end
  end
  return false
end

-- The parts of a request that waits at this place, with those of the limiters whose permits are not exchanged.
local function push_place(wants, at, wait, number, parts)
  for w = 1, #wants do
    if w == at then
      replies.push_part({ wait, number, 0, -1, 0 })
    elseif parts and not wants[w].is_permits then
      replies.push_part(parts[w])
    else
      replies.push_part({ -1, 0, 0, 0, 0 })
    end
  end
end

function M.decide(wants, at, newcomer, budget, ticket)
  local own, cost = wants[at].state, wants[at].cost
  local fields = { 't' .. stored.member(newcomer.class, newcomer.tenant), 'g' .. stored.id(newcomer.gateway) }
  local q = open(wants, at, fields)
  if not q then return end
  keep_back(wants, newcomer.class)
  if budget > common.MAX_BUDGET then budget = common.MAX_BUDGET end
  queue.forget_overdue(q)
  if q.booked > 0 then bookings.lapse(q, own) end
  if q.room ~= 0 then free_permits(q, own) end
  local most = budget > 0 and queue.is_full(q) and 0 or budget
  newcomer.deadline, newcomer.like, newcomer.cost = call.now + budget, like_of(wants, at), cost
  if q.booked > 0 then bookings.claim(q, own, newcomer) end
  local chain
  local first, retry_after, bound, parts, deadline, ask_after = reserve.decide(wants, most, ticket)
  local is_too_late = not parts and first > most and most > 0 and not has_lease(wants)
  if is_too_late then
    -- Other requests make room for it.
    local moved, limit = queue.chain(q, newcomer.deadline, newcomer.like, call.now + first, {})
    if moved then
      local again, _, its_bound, its_parts = reserve.decide(wants, limit - call.now, ticket)
      if its_parts then chain, first, retry_after, bound, parts = moved, again, 0, its_bound, its_parts end
    end
  end
  if parts and first > 0 then
    local number, slot = queue.join(q, newcomer, chain, { at = call.now + first, grants = grants_of(wants, parts) })
    local want = wants[bound]
    replies.push_decision(1, slot - call.now, 0, bound, states.level(want.state, want.enforce))
    push_place(wants, at, slot - call.now, number, parts)
  else
    local place = replies.push_decided(wants, first, retry_after, bound, parts, deadline, ask_after)
    local is_its_own = is_too_late and not parts and bound == at and not own.open.gate
    if is_its_own and queue.has_cheaper(q, newcomer.deadline, cost) then
      local back = bookings.book(q, own, newcomer, budget, retry_after)
      if back then replies.replace(place, back) end
    end
  end
  settle(q, wants[at].state)
end

local function open_for(wants, at, number)
  local id = stored.id(number)
  local q = open(wants, at, { 'r' .. id, 'n' .. id, 'p' .. id })
  if q then bookings.lapse(q, wants[at].state) end
  return q, id
end

function M.confirm(wants, at, number)
  local q, id = open_for(wants, at, number)
  if not q then return end
  keep_floors(wants, q, id)
  local slot, grants = queue.confirm(q, id, refund_to(wants, q))
  settle(q, wants[at].state)
  if slot and not grants then
    -- It may have moved up since.
    local it = stored.request(q, id)
    if it then slot = it.at end
  end
  local own, code, wait = wants[at], slot and 1 or 0, slot and slot - call.now or 0
  if not grants and wait < 0 then wait = 0 end
  replies.push_decision(code, wait, 0, at, states.level(own.state, own.enforce))
  if not slot then return end
  if not grants then return push_place(wants, at, wait, number) end
  local parts = parts_of(wants, grants, wait > 0 and wait or 0)
  for w = 1, #wants do replies.push_part(parts[w] or { -1, 0, 0, 0, 0 }) end
end

function M.leave(wants, at, number)
  local q, id = open_for(wants, at, number)
  if not q then return end
  local it = stored.request(q, id)
  if it then queue.leave(q, id, it, refund_to(wants, q)) end
  -- If no request leaves, permits have come back to the limiter.
  if number == 0 and q.len > 0 then q.room, q.changed = 1, true end
  replies.push(it and 1 or 0)
  settle(q, wants[at].state)
end

function M.tenants(k, horizon)
  local q = queue.open(k, horizon, {})
  if not q then return replies.push_foreign(k) end
  local known = turns.known(q)
  replies.push(#known)
  for _, tenant in ipairs(known) do
    replies.push_text(tenant.name)
    replies.push_pair(tenant.class, tenant.weight)
    replies.push_pair(tenant.waiting, tenant.granted)
    replies.push(tenant.start - q[tenant.class].now)
  end
end

return M
