-- Token bucket as a generic cell rate algorithm with reservations. Twin of token_bucket.rs, which explains the rule.
--
-- A rule is { kind, per, den, most, saved }: most is the burst. States are those of timeline.lua.

local common, credits, timeline = require 'common', require 'timeline.credit', require 'timeline'
local floor, max, min, unpack_from = math.floor, math.max, math.min, struct.unpack

local M = {
  kind = 84, lease = false, names = 'aux', born_at = timeline.BORN_AT,
  read = timeline.read, lasts = timeline.reset_after, write = timeline.write, used_up = timeline.used_up,
  take = timeline.take,
}

function M.rule(text, from)
  local per, den, most = unpack_from('<ddd', text, from)
  return { kind = M.kind, per = per, den = den, most = most, saved = most }
end

function M.pace(rule) return rule.per, rule.den end

function M.earliest(open, from, cost, kept)
  local rule = open.rule
  local length = cost * rule.per
  kept = kept and kept > 0 and max(min(kept, rule.most - cost), 0) * rule.per or 0
  local start = kept == 0 and timeline.free(open, from, length) or timeline.free_after(open, from, length, kept)
  local at = -floor(-(start + length - rule.most * rule.per) / rule.den)
  if at > from then
    local came_back = from == 0 and open.credit and credits.free_in_credit(open, kept + length)
    if came_back then return 0, came_back end
    return at, start
  end
  local first = kept > 0 and timeline.free(open, from, length)
  if first and (from == 0 or first < from * rule.den + rule.per) then start = first end
  return from, start
end

-- Whether the permits of a grant are within reach no earlier than `at`.
function M.binds(open, cost, at, whole, ticks)
  local rule = open.rule
  return (whole - at) * rule.den + ticks % rule.den + cost * rule.per > rule.most * rule.per - rule.den
end

function M.refund(open, whole, ticks, born, _, cost) return credits.settle(open, whole, ticks, born, cost) end

function M.promise(open, at, start, kept)
  local rule = open.rule
  if start - at * rule.den < rule.most * rule.per then credits.promise(open, at, start) end
  if kept and kept > 0 then credits.float(open, kept * rule.per) end
end

-- Takes permits for requests that cost the same, one after the other, as far as their budgets allow: `budgets` has one number for
-- each, or none where all are the `least`. Returns how many are admitted, which are those that `reserve.decide` admits (a test
-- compares): without holes one step of the tail decides all of them. nil where the line is more than its tail, or remembers
-- requests that wait near their permits (`promise`).
function M.take_alike(open, cost, requests, least, budgets)
  local rule, tail = open.rule, open.tail
  if open.credit or #open.holes > 0 or cost > 1 and cost * 4 > rule.most then return nil end
  local den, length, room = rule.den, cost * rule.per, rule.most * rule.per - tail
  local admitted = floor((min(least, common.MAX_BUDGET) * den + room) / length)
  if admitted < 0 then admitted = 0 end
  if admitted >= requests then
    admitted = requests
  elseif budgets ~= '' then
    for i = admitted, requests - 1 do
      local budget = min(unpack_from('<d', budgets, 8 * i + 1), common.MAX_BUDGET)
      if (admitted + 1) * length - room <= budget * den then admitted = admitted + 1 end
    end
  end
  open.tail = tail + admitted * length
  return admitted
end

function M.level(open)
  local rule, holes, remaining = open.rule, open.holes, 0
  local full, per = rule.most * rule.per, rule.per
  for i = 1, #holes + 1, 2 do
    local s, e = holes[i] or open.tail, holes[i + 1] or full
    if e > full then e = full end
    local past = 1 - rule.den
    local last = e - (s > past and s or past) >= per and 1 or 0
    local permits = floor((e - (s > -rule.den and s or 0)) / per)
    remaining = remaining + (permits > last and permits or last)
  end
  if open.credit then remaining = remaining + floor(open.credit.free / per) end
  local next = M.earliest(open, 0, 1)
  return remaining, next, timeline.reset_after(open)
end

return M
