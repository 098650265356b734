-- Leaky bucket as a queue: a constant outflow, one permit at a time. Twin of leaky_bucket.rs, which
-- explains the rule: same names, same order, same arithmetic. Pure: no redis.call.
--
-- A rule is { per, den, most, saved, longest_wait }: the last is in µs, nil without a bound, and is also in the open
-- state. States are those of timeline.lua, where this branch begins.
local function earliest(open, from, cost)
  local rule = open.rule
  local start = free(open, from, cost * rule.per)
  local at = -floor(-start / rule.den)
  return at > from and at or from, start
end

return {
  kind = 76, lease = false, born_at = 43, earliest = earliest, take = take, write = write, used_up = used_up,
  read = function(raw, now, rule)
    local open = read(raw, now, rule)
    if open then open.longest_wait = rule.longest_wait end
    return open
  end,
  refund = function(...) return lazy.holes.refund(...) end,
  -- remaining, next, reset_after
  level = function(open)
    local next = earliest(open, 0, 1)
    return next == 0 and 1 or 0, next, reset_after(open)
  end,
  rule = function(entries, from)
    local per, den, most, longest_wait, next = unpack_from('<dddd', entries, from)
    if longest_wait >= MAX_BUDGET then longest_wait = nil end
    return { per = per, den = den, most = most, saved = 1, longest_wait = longest_wait }, next
  end,
  same = function(a, b)
    return a.per == b.per and a.den == b.den and a.most == b.most and a.longest_wait == b.longest_wait
  end,
}
end
