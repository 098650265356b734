-- Leaky bucket as a queue: a constant outflow, one permit at a time. Twin of leaky_bucket.rs, which
-- explains the rule: same names, same order, same arithmetic. Pure: no redis.call.
--
-- A rule is { per, den, most, longest_wait }: the last is in µs, nil without a bound, and is also in the open
-- state. States are those of timeline.lua.
make[76] = function()
local leaky_bucket = { kind = 76, args = 4 }
local free, reset_after = on_a_timeline(leaky_bucket, function() return 1 end)

local read = leaky_bucket.read
function leaky_bucket.read(raw, now, rule)
  local open = read(raw, now, rule)
  if open then open.longest_wait = rule.longest_wait end
  return open
end

function leaky_bucket.rule(args, i)
  local longest_wait = tonumber(args[i + 3])
  if longest_wait >= MAX_BUDGET then longest_wait = nil end
  return {
    per = tonumber(args[i]), den = tonumber(args[i + 1]), most = tonumber(args[i + 2]),
    longest_wait = longest_wait,
  }
end

function leaky_bucket.same(a, b)
  return a.per == b.per and a.den == b.den and a.most == b.most and a.longest_wait == b.longest_wait
end

function leaky_bucket.earliest(open, from, cost)
  local rule = open.rule
  local start = free(open, from, cost * rule.per)
  return math.max(ceil_div(start, rule.den), from), start
end

-- remaining, next, reset_after
function leaky_bucket.level(open)
  local next = leaky_bucket.earliest(open, 0, 1)
  return next == 0 and 1 or 0, next, reset_after(open)
end
return leaky_bucket
end
