-- The requests that wait for one limiter, each with a slot of its own, and which of them takes which slot. Twin of queue.rs and
-- queue/gone.rs, which explain it. queue/free_permits.lua has the permits that are free before the last slots.

local call, common, stored, turns = require 'call', require 'common', require 'fair.stored', require 'fair.turns'
local M = {}

local max, unpack_from = math.max, struct.unpack
local MAX_WAITING, AHEAD, LEASE, OVERDUE, LOOK_EVERY = 10000, 50000, 10000000, 1000000, 500000
local MOST_MOVED, LOOKS, FEW, GONE = 16, 128, 8, 16
local REQUESTS, MOST_LOOKED, MOST_CALLED = 8, 24, 64

-- The queue whose first key has the number `k`, opened once per call; nil where the key holds a foreign value.
function M.open(k, horizon, fields)
  local queues = call.queues or {}
  call.queues = queues
  local q = queues[k]
  if q == nil then
    q = stored.open(k, horizon, fields) or false
    queues[k] = q
  elseif q then
    stored.fetch(q, fields)
  end
  return q or nil
end

function M.is_full(q) return q.len >= MAX_WAITING end

function M.is_gone(q, it)
  local heard = stored.gateway(q, it.gateway)
  return not heard or heard < call.now - LEASE
end

local function number(id) return (unpack_from('>d', id)) end

local function fetch(q, ids)
  local fields = {}
  for i, id in ipairs(ids) do fields[i] = 'r' .. id end
  stored.fetch(q, fields)
end

-- The requests with slots from `from` to `to`, the last first or the first, in pieces: mostly the first one is meant.
function M.walk(q, from, to, is_forward)
  local command, start, stop = 'ZREVRANGEBYSCORE', to, from
  if is_forward then command, start, stop = 'ZRANGEBYSCORE', from, to end
  local piece, i, offset, count = {}, 0, 0, FEW
  return function()
    i = i + 1
    if i > #piece then
      if offset > 0 and #piece < count or offset >= LOOKS then return nil end
      if offset > 0 then count = LOOKS - FEW end
      piece = stored.ordered(q, command, start, stop, 'LIMIT', offset, count)
      if #piece == 0 then return nil end
      offset, i = offset + count, 1
      fetch(q, piece)
    end
    return piece[i], stored.request(q, piece[i])
  end
end

-- The requests that have to move so that a request with this `deadline` gets a slot, if a slot at `goal` is free; nil if
-- there is no way. `but` do not move. With the deadline of the last one.
function M.chain(q, deadline, like, goal, but)
  local chain, fixed, limit = {}, {}, deadline
  for _, id in ipairs(but) do fixed[id] = true end
  while goal > limit do
    if #chain >= MOST_MOVED then return nil end
    local best, furthest
    for id, it in M.walk(q, 0, limit) do
      if it and not fixed[id] and not it.called and it.like == like and it.at > call.now and it.at >= q.closed and it.deadline > limit then
        if not furthest or it.deadline > furthest or it.deadline == furthest and number(id) > number(best) then
          best, furthest = id, it.deadline
        end
        if furthest >= goal then break end
      end
    end
    if not best then return nil end
    chain[#chain + 1], fixed[best], limit = best, true, furthest
  end
  return chain, limit
end

-- Whether a request that costs less waits for one of the last slots before `deadline`.
function M.has_cheaper(q, deadline, cost)
  if cost == 1 then return false end
  for _, it in M.walk(q, 0, deadline) do
    if it and it.cost < cost then return true end
  end
  return false
end

function M.give(q, id, slot, is_unseen)
  local it = stored.request(q, id)
  if not it then return nil end
  local old = { at = it.at, grants = it.grants }
  it.at, it.grants = slot.at, slot.grants
  if slot.at < q.first then q.first = slot.at end
  stored.set_score(q, slot.at, id)
  stored.put_request(q, id, it)
  q.changed = true
  if not is_unseen then common.notify(it.gateway, it.ticket) end
  return old
end

local function shift(q, chain, slot)
  for i = #chain, 1, -1 do slot = M.give(q, chain[i], slot) or slot end
  return slot
end

function M.join(q, newcomer, chain, slot)
  stored.begin(q)
  local its_number = q.last + 1 > call.now and q.last + 1 or call.now
  local id = stored.id(its_number)
  q.last = its_number
  if chain then slot = shift(q, chain, slot) end
  local _, count = stored.gateway(q, newcomer.gateway)
  stored.put_gateway(q, newcomer.gateway, call.now, count + 1)
  stored.set_score(q, slot.at, id)
  if q.len == 0 or slot.at < q.first then q.first = slot.at end
  q.len, q.changed = q.len + 1, true
  newcomer.tenant = turns.add(q, newcomer.class, newcomer.tenant, newcomer.weight, its_number, newcomer.cost)
  newcomer.at, newcomer.grants = slot.at, slot.grants
  stored.put_request(q, id, newcomer)
  stored.keep_until(q, newcomer.deadline)
  return its_number, slot.at
end

local function forget(q, id, it)
  stored.ordered(q, 'ZREM', id)
  stored.forget(q, id)
  local heard, count = stored.gateway(q, it.gateway)
  if heard then stored.put_gateway(q, it.gateway, heard, count - 1) end
end

function M.leave(q, id, it, refund)
  if not it.called then turns.remove(q, id, it) end
  forget(q, id, it)
  local slot = { at = it.at, grants = it.grants }
  if it.at >= max(q.closed, call.now) then
    for last_id, other in M.walk(q, it.at + 1, '+inf') do
      if other and not other.called and other.like == it.like and not M.is_gone(q, other) then
        slot = M.give(q, last_id, slot)
        break
      end
    end
  end
  refund(slot.grants)
end

function M.forget_overdue(q)
  local overdue = call.now - OVERDUE
  if q.is_new or q.first >= overdue then return end
  local first = stored.ordered(q, 'ZRANGEBYSCORE', 0, '+inf', 'WITHSCORES', 'LIMIT', 0, GONE + 1)
  for i = 1, #first, 2 do
    local id = first[i]
    q.first = tonumber(first[i + 1])
    if q.first >= overdue or i > 2 * GONE then break end
    local it = stored.request(q, id)
    if it then
      if not it.called then turns.remove(q, id, it) end
      forget(q, id, it)
    else
      stored.ordered(q, 'ZREM', id)
    end
  end
end

local function forget_gone(q, like, refund)
  local firsts = stored.ordered(q, 'ZRANGEBYSCORE', call.now, '+inf', 'LIMIT', 0, GONE)
  fetch(q, firsts)
  q.next_look = call.now + LOOK_EVERY
  for _, id in ipairs(firsts) do
    local it = stored.request(q, id)
    if it and it.like == like and M.is_gone(q, it) then
      M.leave(q, id, it, refund)
      q.next_look = call.now
    end
  end
end

-- The first request in turn that is alike, or has a slot that is no later; nil if that is `id`.
local function next_in_turn(q, id, own)
  local looked = 0
  for _, member in ipairs(turns.firsts(q)) do
    local tenant = stored.tenant(q, member)
    local its_number = tenant and tenant.head
    for _ = 1, REQUESTS do
      if not its_number then break end
      local first = stored.id(its_number)
      if first == id then return nil end
      local other = stored.request(q, first)
      if other and (other.like == own.like or other.at <= own.at and not M.is_gone(q, other)) then return first, other end
      looked = looked + 1
      if looked >= MOST_LOOKED then return nil end
      its_number = stored.next_of(q, first)
    end
  end
end

-- Records that the turn of a request has come, which keeps its slot until it confirms.
local function call_in(q, id, it)
  turns.serve(q, id, it)
  it.called = true
end

local function first_other(q, id, own)
  for _ = 1, MOST_CALLED do
    local first, other = next_in_turn(q, id, own)
    if not first or other.at > own.at or M.is_gone(q, other) then return first, other end
    call_in(q, first, other)
    stored.put_request(q, first, other)
  end
end

local function yields(q, id, own, refund)
  for _ = 1, GONE do
    local first, other = first_other(q, id, own)
    if not first then return nil end
    if M.is_gone(q, other) then
      M.leave(q, first, other, refund)
    else
      local chain = M.chain(q, own.deadline, own.like, other.at, { id, first })
      if not chain then return nil end
      call_in(q, first, other)
      local slot = shift(q, chain, M.give(q, first, { at = own.at, grants = own.grants }))
      -- It learns its new slot from the answer.
      M.give(q, id, slot, true)
      return slot.at
    end
  end
end

-- Decides whether a request, whose slot comes, is sent or yields its slot. Returns nil when it waits there no longer, else the
-- instant of its slot, and the grants if it is sent.
function M.confirm(q, id, refund)
  M.forget_overdue(q)
  local own = stored.request(q, id)
  if not own then return nil end
  if not own.called then stored.fetch(q, { 't' .. stored.member(own.class, own.tenant), 'g' .. stored.id(own.gateway) }) end
  local _, count = stored.gateway(q, own.gateway)
  stored.put_gateway(q, own.gateway, call.now, count)
  q.changed = true
  if call.now >= q.next_look or q.next_look > call.now + LOOK_EVERY then forget_gone(q, own.like, refund) end
  if own.at < q.closed then
    -- It asks again, and its slot comes after the pause.
    M.leave(q, id, own, refund)
    return nil
  end
  if own.at - call.now > AHEAD then return own.at end
  if not own.called then
    local at = yields(q, id, own, refund)
    if at then return at end
    turns.serve(q, id, own)
  end
  forget(q, id, own)
  return own.at, own.grants
end

-- Gives a request whose turn has come the next slot after `before` that it can have. Twin of queue/displaced.rs, as the next three are.
local function keep_turn(q, id, it, before)
  local walk = M.walk(q, max(before, call.now) + 1, it.at - 1, true)
  for _ = 1, MOST_MOVED do
    local _, other = walk()
    local chain = other and not other.called and other.like == it.like and M.chain(q, other.at, it.like, it.at, { id })
    if chain then return M.give(q, id, shift(q, chain, { at = it.at, grants = it.grants }), true) end
  end
end

function M.is_due(q, it) return it.at - call.now <= AHEAD and it.at >= q.closed end

function M.displace(q, id, it, chain, slot)
  local before = it.at
  -- It learns its new slot from the answer.
  M.give(q, id, chain and shift(q, chain, slot) or slot, true)
  if it.at > before then q.room = 1 end
  if it.at > before and it.called then keep_turn(q, id, it, before) end
end

function M.dismiss(q, id, it)
  if not it.called then turns.remove(q, id, it) end
  forget(q, id, it)
  q.room, q.changed = 1, true
end

function M.save_all()
  for _, q in pairs(call.queues) do
    if q then stored.save(q) end
  end
end

return M
