-- Token bucket as a generic cell rate algorithm with reservations. Twin of token_bucket.rs, which
-- explains the rule: same names, same order, same arithmetic. Pure: no redis.call.
--
-- A rule is { per, den, most }: most is the burst. States are those of timeline.lua.
make[84] = function()
local token_bucket = { kind = 84, args = 3 }
local free, reset_after = on_a_timeline(token_bucket, function(rule) return rule.most end, function(open)
  local debt = ceil_div(open.rule.most * open.rule.per, open.rule.den)
  local horizon = open.horizon
  if horizon < 0 then horizon = -1 - horizon end
  return math.min(math.max(horizon - debt, 0), MAX_BUDGET)
end)

function token_bucket.rule(args, i)
  return { per = tonumber(args[i]), den = tonumber(args[i + 1]), most = tonumber(args[i + 2]) }
end

function token_bucket.same(a, b)
  return a.per == b.per and a.den == b.den and a.most == b.most
end

token_bucket.names = 'aux'
function token_bucket.ramp(rule) return rule.per, rule.den, rule.most end

function token_bucket.earliest(open, from, cost)
  local rule = open.rule
  local length = cost * rule.per
  local start = free(open, from, length)
  local at = ceil_div(start + length - rule.most * rule.per, rule.den)
  return math.max(at, from), start
end

function token_bucket.promised_after(open, at)
  local rule, from = open.rule, at - open.now
  if from > MAX_BUDGET then return 0 end
  local full = math.max(from, 0) * rule.den + rule.most * rule.per
  return math.max(ceil_div(open.tail - full, rule.per), 0)
end

-- remaining, next, reset_after
function token_bucket.level(open)
  local rule = open.rule
  local full = rule.most * rule.per
  local function permits(s, e)
    e = math.min(e, full)
    -- one by one from now on, and where not even one fits so, one that ends with the room
    local last = left(rule, s, e) >= rule.per and 1 or 0
    return math.max(math.floor((e - clip(rule, s, 0)) / rule.per), last)
  end
  local remaining = permits(open.tail, full)
  for i = 1, #open.holes, 2 do remaining = remaining + permits(open.holes[i], open.holes[i + 1]) end
  local next = token_bucket.earliest(open, 0, 1)
  return remaining, next, reset_after(open)
end
return token_bucket
end
