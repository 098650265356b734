-- The turns that refused requests have booked. Twin of bookings.rs, which explains them.

local adjust, call, common = require 'reserve.adjust', require 'call', require 'common'
local states, stored, turns = require 'state', require 'fair.stored', require 'fair.turns'
local M = {}

local ceil, max, min, pack, unpack_from = math.ceil, math.max, math.min, struct.pack, struct.unpack
local MAX_BOOKED, LEAST_BUDGET, MARGIN, MOST_AHEAD, TRIES, SECOND = 16, 200000, 1000000, 60000000, 4, 1000000
local AHEAD, GRANT, BOOKING = 50000, '<dddd', '<ddBI2c0I2c0c32'

local function all(q)
  if q.booking_list then return q.booking_list end
  local list, raw, from = {}, q.booked > 0 and stored.get(q, 'b') or '', 1
  while from <= #raw do
    local it = {}
    it.at, it.cost, it.class, it.tenant, it.like, it.grant, from = unpack_from(BOOKING, raw, from)
    list[#list + 1] = it
  end
  q.booking_list = list
  return list
end

local function put_all(q, list)
  local parts = {}
  for i, it in ipairs(list) do
    parts[i] = pack(BOOKING, it.at, it.cost, it.class, #it.tenant, it.tenant, #it.like, it.like, it.grant)
  end
  q.booking_list, q.booked, q.changed = list, #list, true
  stored.put(q, 'b', #list > 0 and table.concat(parts))
end

local function whole_seconds(span) return max(ceil(span / SECOND), 1) * SECOND end

local function time_of(rule, permits)
  local period, count = rule.per or rule.span or rule.period, rule.den or rule.count
  return min(ceil(permits * period / count), common.MAX_BUDGET)
end

local function position(q, whose)
  if q.booked == 0 then return nil end
  for i, it in ipairs(all(q)) do
    if it.class == whose.class and it.tenant == whose.tenant and it.like == whose.like then return i, it end
  end
end

function M.book(q, state, refused, budget, retry_after)
  if budget < LEAST_BUDGET or q.booked >= MAX_BOOKED or position(q, refused) then return nil end
  local algorithm, open, cost = state.algorithm, state.open, refused.cost
  local apart = time_of(open.rule, cost * turns.permits_between(q, refused.class, refused.tenant, refused.weight))
  local least = max(q.last_booked + apart - call.now, 0)
  local margin = min(MARGIN, math.floor(budget * 4 / 5))
  local kept = state.floors and state.floors[refused.class]
  local back = whole_seconds(max(retry_after, least - budget))
  for _ = 1, TRIES do
    if back > MOST_AHEAD then return nil end
    local wait, start = algorithm.earliest(open, max(least, back + margin), cost, kept)
    if wait <= back + budget then
      local grant = states.take_ahead(state, start, cost, wait, kept)
      local list = all(q)
      list[#list + 1] = {
        class = refused.class, tenant = refused.tenant, like = refused.like, at = call.now + wait, grant = grant, cost = cost }
      put_all(q, list)
      q.last_booked, q.lapse = call.now + wait, min(q.lapse, call.now + wait - AHEAD)
      return back
    end
    back = max(whole_seconds(wait - budget), back + SECOND)
  end
end

local function refund(state, it) adjust.refund(state, it.cost, unpack_from(GRANT, it.grant)) end

function M.claim(q, state, whose)
  local i, it = position(q, whose)
  if not i or it.at > whose.deadline then return end
  local list = all(q)
  table.remove(list, i)
  put_all(q, list)
  q.room = 1
  refund(state, it)
end

function M.lapse(q, state)
  local is_all = q.len == 0
  if q.booked == 0 or not is_all and q.lapse > call.now then return end
  local kept = {}
  q.lapse = math.huge
  for _, it in ipairs(all(q)) do
    if is_all or it.at - AHEAD <= call.now then
      refund(state, it)
      if not is_all then q.room = 1 end
    else
      kept[#kept + 1] = it
      q.lapse = min(q.lapse, it.at - AHEAD)
    end
  end
  put_all(q, kept)
end

return M
