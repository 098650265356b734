-- The turns that refused requests have booked. Twin of queue/bookings.rs, which explains them: same names, same order, same
-- arithmetic.

local function make_bookings(stored, turns)
local bookings = {}
local MAX_BOOKED, LEAST_BUDGET, MARGIN, MOST_AHEAD, TRIES, SECOND = 16, 200000, 1000000, 60000000, 4, 1000000
local AHEAD, GRANT = 50000, '<dddd'

local function whole_seconds(span) return math.max(math.ceil(span / SECOND), 1) * SECOND end

local function time_of(rule, permits)
  local period, count = rule.per or rule.span or rule.period, rule.den or rule.count
  return math.min(math.ceil(permits * period / count), MAX_BUDGET)
end

local function position(q, whose)
  if q.booked == 0 then return nil end
  for i, it in ipairs(stored.bookings(q)) do
    if it.class == whose.class and it.tenant == whose.tenant and it.like == whose.like then return i, it end
  end
end

-- Books a turn for a request that is refused. Returns how much later its caller has to come back.
function bookings.book(q, state, refused, budget, retry_after)
  if budget < LEAST_BUDGET or q.booked >= MAX_BOOKED or position(q, refused) then return nil end
  local algorithm, open, cost = state.algorithm, state.open, refused.cost
  local apart = time_of(open.rule, cost * turns.permits_between(q, refused.class, refused.tenant, refused.weight))
  local least = math.max(q.last_booked + apart - now, 0)
  local margin = math.min(MARGIN, math.floor(budget * 4 / 5))
  local back = whole_seconds(math.max(retry_after, least - budget))
  for _ = 1, TRIES do
    if back > MOST_AHEAD then return nil end
    local wait, start = algorithm.earliest(open, math.max(least, back + margin), cost)
    if wait <= back + budget then
      local grant = struct.pack(GRANT, algorithm.take(open, start, cost))
      state.dirty = true
      local list = stored.bookings(q)
      list[#list + 1] = {
        class = refused.class, tenant = refused.tenant, like = refused.like, at = now + wait, grant = grant, cost = cost }
      stored.put_bookings(q, list)
      q.last_booked, q.lapse = now + wait, math.min(q.lapse, now + wait - AHEAD)
      return back
    end
    back = math.max(whole_seconds(wait - budget), back + SECOND)
  end
end

-- Refunds the booking of a request that comes back, if its slot is within the budget.
function bookings.claim(q, deadline, whose, refund)
  local i, it = position(q, whose)
  if not i or it.at > deadline then return end
  local list = stored.bookings(q)
  table.remove(list, i)
  stored.put_bookings(q, list)
  q.room = 1
  refund(it.cost, it.grant)
end

-- Refunds the bookings whose slots come within 50 ms; without waiting requests all of them, because then the limiter has room
-- without them.
function bookings.lapse(q, refund)
  local is_all = q.len == 0
  if q.booked == 0 or not is_all and q.lapse > now then return end
  local kept = {}
  q.lapse = math.huge
  for _, it in ipairs(stored.bookings(q)) do
    if is_all or it.at - AHEAD <= now then
      refund(it.cost, it.grant)
      if not is_all then q.room = 1 end
    else
      kept[#kept + 1] = it
      q.lapse = math.min(q.lapse, it.at - AHEAD)
    end
  end
  stored.put_bookings(q, kept)
end
return bookings
end
