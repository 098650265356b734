-- Token bucket as a generic cell rate algorithm with reservations. Twin of token_bucket.rs, which
-- explains the rule: same names, same order, same arithmetic. Pure: no redis.call.
--
-- A rule is { per, den, most, saved }: most is the burst. States are those of timeline.lua, where this branch begins.
if kind == 84 then
local function earliest(open, from, cost)
  local rule = open.rule
  local length = cost * rule.per
  local start = free(open, from, length)
  local at = -floor(-(start + length - rule.most * rule.per) / rule.den)
  if at <= from then return from, start end
  -- Permits that came back are granted for now alone.
  local came_back = from == 0 and open.credit and lazy.credit.free_in_credit(open, length)
  if came_back then return 0, came_back end
  return at, start
end

-- The last two are those of block.rs.
local function refund(open, whole, ticks, born, _, cost)
  local rule = open.rule
  local has_blocks = rule.per * 1000 <= rule.den * 1000000 and rule.most >= 4
  return lazy.credit.settle(open, whole, ticks, born, cost, has_blocks and 500000 or 0)
end

local function promise(open, at, start)
  local rule = open.rule
  if start - at * rule.den < rule.most * rule.per then lazy.credit.promise(open, at, start) end
end

local function promised_after(open, at)
  local rule, from = open.rule, at - open.now
  if from > MAX_BUDGET then return 0 end
  local full = math.max(from, 0) * rule.den + rule.most * rule.per
  return math.max(ceil_div(open.tail - full, rule.per), 0)
end

-- remaining, next, reset_after
local function level(open)
  local rule, holes, remaining = open.rule, open.holes, 0
  local full, per = rule.most * rule.per, rule.per
  -- after the holes comes what is left from the tail on
  for i = 1, #holes + 1, 2 do
    local s, e = holes[i] or open.tail, holes[i + 1] or full
    if e > full then e = full end
    local past = 1 - rule.den
    -- one by one from now on, and where not even one fits so, one that ends with the room
    local last = e - (s > past and s or past) >= per and 1 or 0
    local permits = floor((e - (s > -rule.den and s or 0)) / per)
    remaining = remaining + (permits > last and permits or last)
  end
  if open.credit then remaining = remaining + floor(open.credit.free / per) end
  local next = earliest(open, 0, 1)
  return remaining, next, reset_after(open)
end

return {
  kind = 84, lease = false, names = 'aux', born_at = 43, earliest = earliest, take = take, level = level,
  read = read, write = write, used_up = used_up, refund = refund, promise = promise, promised_after = promised_after,
  rule = function(entries, from)
    local per, den, most, next = unpack_from('<ddd', entries, from)
    return { per = per, den = den, most = most, saved = most }, next
  end,
  same = function(a, b) return a.per == b.per and a.den == b.den and a.most == b.most end,
  ramp = function(rule) return rule.per, rule.den, rule.most end,
}
end
