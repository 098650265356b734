-- A sliding window under more than one rule, which it is while rules change. Twin of sliding_window/state.rs, too.

local common = require 'common'
local M = {}

local floor, max, min, ceil_div = math.floor, math.max, math.min, common.ceil_div
local MAX_OTHERS, FAR, KNOWN_PAST = 3, common.EXACT / 8, 5000000

-- The most numbers that a state keeps about other rules.
M.MAX_NUMBERS = 2 + 4 * MAX_OTHERS

function M.last_of_all(open) return open.ahead[#open.ahead - 1] or open.last end

-- How many permits a law of `count` in `own` µs allows in a window of `span` µs, or `least` if that is
-- more.
local function allows(count, own, span, least)
  local windows = ceil_div(span, own)
  if windows > floor(FAR / count) then return FAR end
  return max(least, windows * count)
end

-- Adds to `laws` the laws that grants under `rule` keep because of another rule.
function M.beside(laws, rule, count, span)
  if span <= rule.span then return end
  local whole = floor(span / rule.span) * rule.span
  local in_whole = allows(rule.count, rule.span, whole, count)
  if in_whole ~= rule.count or whole ~= rule.span then laws[#laws + 1] = { count = in_whole, span = whole } end
  if whole < span then
    laws[#laws + 1] = { count = allows(rule.count, rule.span, span, count), span = span }
  end
end

-- Whether the past permits are still remembered for a rule with a longer window.
function M.tells(open)
  return M.last_of_all(open) + open.span + KNOWN_PAST > open.now
end

-- Count and span of the law that the permits which are no longer kept obey, for a rule of `span`.
local function past_of(open, span)
  local others = open.others
  if span <= open.span then
    if others then return others[1], others[2] end
    return open.closed_count, open.closed_span
  end
  local count, least = open.closed_count, open.closed_span
  for i = 3, others and #others or 0, 4 do
    count, least = max(count, others[i]), min(least, others[i + 1])
  end
  return count, least
end

-- Notes a grant under the rule, and drops the rules whose grants no longer count.
function M.use(open)
  local rule, now = open.rule, open.now
  local own_count, own_span = rule.count, rule.span
  local is_closed = open.closed_count == own_count and open.closed_span == own_span
  local before = open.others or { 0, 0 }
  local after = { before[1], before[2] }
  if open.closed_count > 0 and not is_closed then
    after[1], after[2] = past_of(open, own_span)
    after[3], after[4], after[5], after[6] = open.closed_count, open.closed_span, M.last_of_all(open), 0
  end
  for i = 3, #before, 4 do
    for j = i, i + 3 do after[#after + 1] = before[j] end
  end
  local longest, kept = max(open.span, own_span), { after[1], after[2] }
  local span, most = own_span, own_count
  for i = 3, #after, 4 do
    local count, other, last = after[i], after[i + 1], after[i + 2]
    local is_own = count == own_count and other == own_span
    if not is_own and last + longest > now and #kept < M.MAX_NUMBERS then
      for j = i, i + 3 do kept[#kept + 1] = after[j] end
      span, most = max(span, other), max(most, count)
    end
  end
  open.closed_count, open.closed_span, open.span, open.most = own_count, own_span, span, most
  open.others = #kept > 2 and kept or nil
end

-- Until when `law` delays the permit numbered `number` because of a permit that is no longer kept.
function M.forgotten(open, law, number)
  local count, span = past_of(open, law.span)
  local before = number - allows(count, span, law.span, law.count)
  if before < 0 then return 0 end
  return open.floor - (ceil_div(open.base - before, count) - 1) * span + law.span
end

-- The number of the first permit that `law` delays at an instant which is its span after `x`.
function M.room(open, law, x)
  local count, span = past_of(open, law.span)
  local later = min(ceil_div(open.floor - x, span), ceil_div(open.base, count))
  local first = max(open.base - later * count, 0)
  return min(open.base + law.count, first + allows(count, span, law.span, law.count))
end

return M
