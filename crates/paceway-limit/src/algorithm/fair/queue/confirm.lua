-- The requests whose slots come: each is sent in its slot, or gives it to the one whose turn it is. Twin of `confirm` in queue.rs.

local call, gone, queue = require 'call', require 'fair.queue.gone', require 'fair.queue'
local slots, stored, turns = require 'fair.queue.slots', require 'fair.stored', require 'fair.turns'

local AHEAD, GONE, LOOK_EVERY = 50000, 16, 500000
local TENANTS, REQUESTS, MOST_LOOKED, MOST_CALLED = 8, 8, 24, 64

-- The first request in turn that is alike, or has a slot that is no later; nil if that is `id`.
local function next_in_turn(q, id, own)
  local class, started = turns.firsts(q)
  local looked = 0
  for i = 1, #started < TENANTS and #started or TENANTS do
    local tenant = stored.tenant(q, class, string.sub(started[i], 2))
    local number = tenant and tenant.head
    for _ = 1, REQUESTS do
      if not number then break end
      local first = stored.id(number)
      if first == id then return nil end
      local other = stored.request(q, first)
      if other and (other.like == own.like or other.at <= own.at and not queue.is_gone(q, other)) then return first, other end
      looked = looked + 1
      if looked >= MOST_LOOKED then return nil end
      number = stored.next_of(q, first)
    end
  end
end

-- The first request, other than `id`, of the tenant whose turn it is, if it is alike and has a later slot. A request whose own
-- slot is no later than that of `id` needs no other slot in its turn: it is called.
local function first_other(q, id, own)
  for _ = 1, MOST_CALLED do
    local first, other = next_in_turn(q, id, own)
    if not first then return nil end
    if other.at > own.at or queue.is_gone(q, other) then return first, other end
    turns.serve(q, first, other)
    other.called = true
    stored.put_request(q, first, other)
  end
end

-- Gives the slot of a request that confirms to the one whose turn it is; returns the instant of the slot that it has
-- instead, or nil if it keeps its own.
local function yields(q, id, own, refund)
  for _ = 1, GONE do
    local first, other = first_other(q, id, own)
    if not first then return nil end
    if queue.is_gone(q, other) then
      slots.leave(q, first, other, refund)
    else
      local chain
      if other.at > own.deadline then
        chain = slots.chain(q, own.deadline, own.like, other.at, { id, first })
        if not chain then return nil end
      end
      turns.serve(q, first, other)
      other.called = true
      local slot = queue.give(q, first, { at = own.at, grants = own.grants })
      if chain then slot = queue.shift(q, chain, slot) end
      -- It learns its new slot from the answer.
      queue.give(q, id, slot, true)
      return slot.at
    end
  end
end

-- Decides whether a request, whose slot comes, is sent or yields its slot. Returns nil when it waits there no longer, else the
-- instant of its slot, and the grants if it is sent.
return function(q, id, refund)
  gone.forget_overdue(q)
  local own = stored.request(q, id)
  if not own then return nil end
  if not own.called then stored.fetch(q, { 't' .. stored.CLASSES[own.class] .. own.tenant, 'g' .. stored.id(own.gateway) }) end
  local _, count = stored.gateway(q, own.gateway)
  stored.put_gateway(q, own.gateway, call.now, count)
  q.changed = true
  if call.now >= q.next_look or q.next_look > call.now + LOOK_EVERY then gone.forget_gone(q, own.like, refund) end
  if own.at < q.closed then
    -- It asks again, and its slot comes after the pause.
    slots.leave(q, id, own, refund)
    return nil
  end
  if not own.called then
    if own.at - call.now > AHEAD then return own.at end
    local at = yields(q, id, own, refund)
    if at then return at end
    turns.serve(q, id, own)
  end
  queue.forget(q, id, own)
  return own.at, own.grants
end
