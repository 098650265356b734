-- Concurrency permits: at most `max` requests hold one at a time, later requests wait in a queue. Twin of concurrency.rs.
--
-- A stored state is one sorted set. A holder is `gateway number` (8 bytes each) with its expiry (µs) as score. A waiter is `gateway
-- number deadline` with a negative score that grows in the order of arrival. A waiter that gets a permit is notified on the channel
-- of its gateway. The turns of the waiters are in other keys (concurrency/waiters.lua). A paused limiter has the member `P`, end of
-- the pause, status (8 and 2 bytes) with the score -inf.

local call, common = require 'call', require 'common'
local M = { kind = 67, lease = true }

local redis, max, pack, unpack_from = redis, math.max, struct.pack, struct.unpack
local HOLDER, WAITER, PAUSED = '<i8i8', '<i8i8i8', '<c1i8I2'
local CLAIM, MAX_QUEUE, SPREAD = 2000000, 100000, 1024
local FIRST = -4503599627370496

local plain = common.plain

-- The turns are needed seldom, and a script without functions makes each module that it names.
local function waiters() return require 'concurrency.waiters' end

function M.rule(text, from)
  local limit, lease = unpack_from('<dd', text, from)
  return { max = limit, lease = lease }
end

local function is_unknown(open) return open.now < open.unknown_until end

-- The permits that a request leaves to others: not all of them.
local function cap(open, kept) return max(math.min(kept, open.rule.max - 1), 0) end

local function kept_from(open, number)
  local class = open.floors and open.turns and waiters().most_urgent(open.turns, number)
  return class and cap(open, open.floors[class]) or 0
end

function M.has_room(open) return open.held < open.rule.max and not is_unknown(open) end

local function keep_until_end(open)
  if open.expires and redis.call('PTTL', open.key) < (open.expires - open.now) / 1000 then
    redis.call('PEXPIRE', open.key, common.lifetime(open.expires - open.now))
  end
  open.expires = nil
end

local function hold(open, member, lease)
  local expiry = open.now + lease
  open.held = open.held + redis.call('ZADD', open.key, plain(expiry), member)
  open.expires = max(open.expires or 0, expiry)
end

local function number_of(order) return tonumber(order) - FIRST end

local function oldest_waiter(open)
  local first = redis.call('ZRANGEBYSCORE', open.key, '(-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], number_of(first[2])
end

local function next_waiter(open)
  local oldest, number = oldest_waiter(open)
  if not open.turns or not waiters().has(open.turns, number) then return oldest, number end
  while true do
    local first, it = waiters().first(open.turns)
    if not it then return oldest, number end
    local member = pack(WAITER, it.gateway, it.ticket, it.deadline)
    local order = redis.call('ZSCORE', open.key, member)
    if order and number_of(order) == first then return member, first end
    waiters().remove(open.turns, first)
  end
end

local function hand_over(open)
  local is_closed = is_unknown(open) or open.gate
  while open.queued > 0 and (M.has_room(open) or is_closed) do
    local member, place = (is_closed and oldest_waiter or next_waiter)(open)
    local gateway, number, deadline
    if #member == 24 then gateway, number, deadline = unpack_from(WAITER, member) end
    local waits = deadline and deadline > open.now
    if is_closed and waits or not is_closed and open.held + kept_from(open, place) >= open.rule.max then break end
    redis.call('ZREM', open.key, member)
    open.queued = open.queued - 1
    -- A gateway without a subscription is dead, or asks for all of its waiters again when it is back.
    local is_served = waits and common.notify(gateway, number) ~= 0
    if is_served then
      hold(open, pack(HOLDER, gateway, number), math.min(open.rule.lease, CLAIM))
      open.handed_over = true
    end
    if open.turns then waiters().remove(open.turns, place, is_served) end
  end
end

local function load_gate(open)
  local member = redis.call('ZRANGEBYSCORE', open.key, '-inf', '(0', 'LIMIT', 0, 1)[1]
  if #member ~= 11 or string.byte(member) ~= 80 then return end
  local _, stop, status = unpack_from(PAUSED, member)
  open.queued = open.queued - 1
  if stop > open.now then
    open.gate = { stop = stop, status = status, member = member }
  else
    redis.call('ZREM', open.key, member)
  end
end

-- nil for a foreign value, and the number of the key with the turns if it is that one's
function M.load(state)
  local key, horizon, now = state.key, state.horizon, call.now
  if not common.ask('ZREMRANGEBYSCORE', key, 0, plain(now)) then return nil end
  local lost = horizon >= 0 and call.lost_at or 0
  local open = {
    rule = state.rule, now = now, key = key, floors = state.floors,
    unknown_until = lost > 0 and lost + horizon or 0,
  }
  open.held = redis.call('ZCOUNT', key, 0, '+inf')
  open.queued = redis.call('ZCARD', key) - open.held
  if open.queued > 0 then load_gate(open) end
  if state.queue > 0 then
    open.turns = waiters().open(state.queue, open.queued)
    if not open.turns then return nil, state.queue end
  end
  hand_over(open)
  keep_until_end(open)
  return open
end

function M.pause(state, stop, status)
  local open = state.open
  local gate = open.gate
  if stop <= (gate and gate.stop or open.now) then return false end
  if gate then redis.call('ZREM', open.key, gate.member) end
  open.gate = { stop = stop, status = status, member = pack(PAUSED, 'P', stop, status) }
  redis.call('ZADD', open.key, '-inf', open.gate.member)
  open.expires = max(open.expires or 0, stop)
  return true
end

function M.holds(open, ticket)
  return ticket.deadline ~= 0 and redis.call('ZSCORE', open.key, pack(HOLDER, ticket.gateway, ticket.number)) ~= false
end

function M.is_free(open, ticket, kept)
  return M.has_room(open) and open.held + cap(open, kept) < open.rule.max or M.holds(open, ticket)
end

function M.hold_for(open, ticket)
  hold(open, pack(HOLDER, ticket.gateway, ticket.number), open.rule.lease)
  return ticket.gateway, ticket.number, 0, 1
end

local function next_free(open, kept)
  local expiry = open.now
  if open.held + kept >= open.rule.max then
    local first = redis.call('ZRANGEBYSCORE', open.key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    expiry = tonumber(first[2])
  end
  return max(expiry, open.unknown_until, open.gate and open.gate.stop or 0) - open.now
end

-- Until when the ticket waits, and after how many µs it asks again without a notification; nil when the queue
-- is full, or the deadline is past or within a pause.
function M.enqueue(open, ticket, budget, turn, kept)
  local deadline = ticket.deadline
  if deadline == 0 then deadline = open.now + budget end
  if deadline <= max(open.now, open.gate and open.gate.stop or 0) then return nil end
  local member = pack(WAITER, ticket.gateway, ticket.number, deadline)
  if ticket.deadline == 0 or not redis.call('ZSCORE', open.key, member) then
    if open.queued >= MAX_QUEUE or open.turns and waiters().is_full(open.turns) then return nil end
    local order
    if ticket.deadline ~= 0 and open.gate then
      local first = redis.call('ZRANGEBYSCORE', open.key, '(-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      order = first and tonumber(first) - 1 or FIRST + open.now
    else
      local last = redis.call('ZREVRANGEBYSCORE', open.key, '(0', '(-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      order = max(FIRST + open.now, last and tonumber(last) + 1 or FIRST)
    end
    redis.call('ZADD', open.key, plain(order), member)
    open.queued, open.expires = open.queued + 1, max(open.expires or 0, deadline)
    if open.turns then waiters().add(open.turns, number_of(order), ticket, deadline, turn) end
    keep_until_end(open)
  end
  local later = oldest_waiter(open) == member and 0 or 1 + ticket.number % SPREAD
  return deadline, next_free(open, cap(open, kept)) + later * 1000
end

function M.renew(open, gateway, number)
  local member = pack(HOLDER, gateway, number)
  if not is_unknown(open) and not redis.call('ZSCORE', open.key, member) then return false end
  hold(open, member, open.rule.lease)
  return true
end

function M.refund(open, gateway, number, deadline)
  if redis.call('ZREM', open.key, pack(HOLDER, gateway, number)) == 1 then
    open.held = open.held - 1
    hand_over(open)
    return true
  end
  local member = pack(WAITER, gateway, number, deadline)
  local order = open.turns and redis.call('ZSCORE', open.key, member)
  if redis.call('ZREM', open.key, member) == 1 then
    open.queued = open.queued - 1
    if order then waiters().remove(open.turns, number_of(order)) end
    return true
  end
  return false
end

function M.forget(open)
  local gone = redis.call('ZREMRANGEBYSCORE', open.key, 0, '+inf')
  if open.gate then gone = gone + redis.call('ZREM', open.key, open.gate.member) end
  open.held, open.gate = 0, nil
  hand_over(open)
  return gone > 0
end

function M.level(open)
  local last, room = open.now, 0
  if open.held > 0 then last = tonumber(redis.call('ZREVRANGE', open.key, 0, 0, 'WITHSCORES')[2]) end
  local stop = open.gate and open.gate.stop or 0
  if M.has_room(open) and stop == 0 then room = open.rule.max - open.held end
  return room, next_free(open, 0), max(last, open.unknown_until, stop) - open.now
end

function M.save(state) keep_until_end(state.open) end

return M
