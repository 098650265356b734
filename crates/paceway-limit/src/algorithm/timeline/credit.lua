-- Permits that requests reserved and did not use, while others wait for theirs. Twin of timeline/credit.rs, which explains them.
-- A credit is { free, to, reach, moved, mark, promised, gap }: `to` is `until` in the twin.

local common, holes_of = require 'common', require 'timeline.holes'
local M = {}

local floor, max, min, clamp = math.floor, math.max, math.min, common.clamp
local FROM_CREDIT, MOST_MOVED = -common.EXACT / 4, common.EXACT / 8

local function none() return { free = 0, to = 0, reach = 0, moved = 0, mark = 0, promised = 0, gap = 0 } end

local function usual_gap(rule)
  local full = rule.most * rule.per
  return max(full - max(rule.per, floor(full / 4)) - rule.den, 0)
end

local function sent_until(credit, rule, now)
  local gap = usual_gap(rule)
  if credit.promised > now then gap = min(credit.gap, gap) end
  return now + floor(gap / rule.den)
end

local function ticks_until(open, instant)
  local rule = open.rule
  return clamp(instant - open.now, floor(rule.most * rule.per / rule.den) + 2 * common.MAX_BUDGET) * rule.den
end

local function taken_until(open, instant)
  local holes = open.holes
  local stop = min(open.tail, ticks_until(open, instant))
  local taken = stop
  for i = 1, #holes, 2 do
    taken = taken - max(min(holes[i + 1], stop) - max(holes[i], 0), 0)
  end
  return max(taken, 0)
end

function M.tidy(open)
  local rule, now, credit = open.rule, open.now, open.credit
  local ahead = sent_until(credit, rule, now)
  if credit.to == 0 then credit.to = ahead end
  credit.free = min(credit.free, taken_until(open, credit.to))
  credit.to = max(credit.to, ahead)
  if credit.moved + credit.free > 0 then
    local sent, kept, holes = (ahead - now) * rule.den, {}, open.holes
    for i = 1, #holes, 2 do
      local s, e = holes[i], holes[i + 1]
      if e <= sent then
        credit.free = credit.free + e - max(s, 0)
      else
        kept[#kept + 1], kept[#kept + 2] = s, e
      end
    end
    open.holes = kept
  end
  if credit.free > 0 and credit.promised <= now and open.tail <= usual_gap(rule) then
    local free, holes = credit.free, open.holes
    open.tail = open.tail - free
    for i = 2, #holes, 2 do holes[i] = holes[i] - free end
    holes_of.usable(open)
    credit.moved = (floor((credit.moved + free) / rule.den) + 1) * rule.den
    credit.free, credit.mark = 0, credit.moved
  end
  if credit.free == 0 then credit.to = 0 end
  credit.reach = max(credit.reach, credit.to)
  if credit.moved >= MOST_MOVED then credit.moved, credit.mark, open.born = 0, 0, now end
  holes_of.forget_if_unused(open)
end

-- The start by which `take` takes `length` ticks of those that came back; nil if there are not as many.
function M.free_in_credit(open, length)
  local credit = open.credit
  if credit.free < length then return nil end
  return 2 * FROM_CREDIT + taken_until(open, credit.to) - credit.free
end

function M.promise(open, at, start)
  local rule, now = open.rule, open.now
  local gap, usual = start - at * rule.den, usual_gap(rule)
  if gap >= usual or start < FROM_CREDIT then return end
  local credit = open.credit or none()
  open.credit = credit
  if credit.promised <= now then credit.promised, credit.gap = 0, usual end
  credit.promised = max(credit.promised, now + at)
  credit.gap = max(min(credit.gap, gap), 0)
  credit.to = min(credit.to, now + floor(start / rule.den))
  M.tidy(open)
end

function M.float(open, kept)
  local per = open.rule.per
  if usual_gap(open.rule) < kept + per + floor(per / 2) then return end
  open.credit = open.credit or none()
  if open.credit.moved ~= 0 then return end
  open.credit.moved = open.rule.den
  M.tidy(open)
end

function M.take(open, start, cost)
  local rule, credit = open.rule, open.credit
  local length, is_credit = cost * rule.per, start < FROM_CREDIT
  local moved = credit.moved
  if is_credit then
    start = start - 2 * FROM_CREDIT
    credit.free, credit.moved = credit.free - length, moved + length
    moved = credit.moved + credit.free
  else
    holes_of.take(open, start, start + length)
  end
  local ticks = start % rule.den + floor(moved / rule.den) * rule.den
  return open.now + floor(start / rule.den), is_credit and -1 - ticks or ticks, open.born, 0
end

function M.settle(open, whole, ticks, born, cost)
  local rule, credit = open.rule, open.credit
  local is_used = ticks < 0
  if is_used then ticks = -1 - ticks end
  local place = ticks % rule.den
  local since, mark, earlier, reach = ticks - place, 0, 0, 0
  if credit then mark, earlier, reach = credit.mark, credit.moved + credit.free, credit.reach end
  local is_placed = since >= mark
  if is_placed and (not is_used or not credit) then
    if not is_used then return holes_of.refund(open, whole, place, born, 0, cost) end
    local start, stop = holes_of.interval(open, whole, place, cost)
    if born == open.born and stop <= open.tail and holes_of.undo_last(open, start, stop) then return true end
  end
  local start, stop = holes_of.interval(open, whole, place, cost)
  local is_beyond = is_placed and start >= ticks_until(open, reach)
  if not is_beyond then start, stop = start - earlier + since, stop - earlier + since end
  if born ~= open.born or stop > open.tail then return false end
  local back = min(stop - start, stop)
  if back < 1 then return false end
  credit = credit or none()
  open.credit = credit
  local free, to = credit.free + back, max(credit.to, sent_until(credit, rule, open.now))
  if free > taken_until(open, to) and is_placed and holes_of.leave_free(open, start, stop) then return true end
  credit.free = free
  M.tidy(open)
  return true
end

function M.after_change(credit, old, tail, now)
  local kept = none()
  kept.promised = max(credit and credit.promised or 0, now + common.ceil_div(tail - usual_gap(old), old.den))
  return kept.promised > now and kept or nil
end

return M
