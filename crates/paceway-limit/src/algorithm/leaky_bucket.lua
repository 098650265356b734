-- Leaky bucket as a queue: a constant outflow, one permit at a time. Twin of leaky_bucket.rs, which explains the rule.
--
-- A rule is { kind, per, den, most, saved, longest_wait }: the last is in µs, nil without a bound, and is also in the open state.
-- States are those of timeline.lua.

local common, holes, timeline = require 'common', require 'timeline.holes', require 'timeline'
local floor = math.floor

local M = {
  kind = 76, lease = false, names = 'aux', born_at = timeline.BORN_AT,
  lasts = timeline.reset_after, write = timeline.write, used_up = timeline.used_up, take = timeline.take, refund = holes.refund,
}

function M.rule(text, from)
  local per, den, most, longest_wait = struct.unpack('<dddd', text, from)
  if longest_wait >= common.MAX_BUDGET then longest_wait = nil end
  return { kind = M.kind, per = per, den = den, most = most, saved = 1, longest_wait = longest_wait }
end

function M.pace(rule) return rule.per, rule.den end

function M.read(raw, now, rule)
  local open = timeline.read(raw, now, rule)
  if open then open.longest_wait = rule.longest_wait end
  return open
end

function M.earliest(open, from, cost)
  local rule = open.rule
  local start = timeline.free(open, from, cost * rule.per)
  local at = -floor(-start / rule.den)
  return at > from and at or from, start
end

function M.level(open)
  local next = M.earliest(open, 0, 1)
  return next == 0 and 1 or 0, next, timeline.reset_after(open)
end

return M
