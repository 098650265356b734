-- The free intervals before the tail of a line of time: permits that come back make them, and later requests take them. Twin of
-- timeline/refund.rs, and of the part of `take` in timeline.rs that meets holes.

local common = require 'common'
local M = {}

local floor, max, min, insert, remove = math.floor, math.max, math.min, table.insert, table.remove

local function left(rule, start, stop) return stop - max(start, 1 - rule.den) end

local function slack_of(rule) return min(2 * rule.den + 2, floor(rule.per / 4)) end

local function drop_shortest_above_bound(holes)
  while #holes > 2 * common.MAX_HOLES do
    local shortest, length = 1, holes[2] - holes[1]
    for i = 3, #holes, 2 do
      if holes[i + 1] - holes[i] <= length then shortest, length = i, holes[i + 1] - holes[i] end
    end
    remove(holes, shortest)
    remove(holes, shortest)
  end
end

local function insert_hole(holes, i, s, e)
  insert(holes, i, e)
  insert(holes, i, s)
end

function M.take(open, start, stop)
  local rule, holes, found = open.rule, open.holes, nil
  local per = rule.per
  for i = 1, #holes, 2 do
    if holes[i] <= start and stop <= holes[i + 1] then
      found = i
      break
    end
  end
  if found then
    local hole_start = remove(holes, found)
    local hole_end = remove(holes, found)
    if hole_end - stop >= per then insert_hole(holes, found, stop, hole_end) end
    if left(rule, hole_start, start) >= per then insert_hole(holes, found, hole_start, start) end
  else
    if start - open.tail >= per then insert_hole(holes, #holes + 1, open.tail, start) end
    open.tail = stop
  end
  drop_shortest_above_bound(holes)
end

-- The ticks that a grant owns on a line that has not moved since it was made.
function M.interval(open, whole, ticks, cost)
  local rule = open.rule
  local most = floor(rule.most * rule.per / rule.den) + 2 * common.MAX_BUDGET
  local start = common.clamp(whole - open.now, most) * rule.den + ticks
  return start, start + cost * rule.per
end

-- A line that is free again equals an absent one.
function M.forget_if_unused(open)
  if open.tail == 0 or open.tail <= -open.rule.den then open.tail, open.born, open.credit, open.holes = 0, open.now, nil, {} end
end

function M.undo_last(open, start, stop)
  local holes, slack = open.holes, slack_of(open.rule)
  if open.tail - stop > slack then return false end
  open.tail = start
  if holes[#holes] and holes[#holes] + slack >= start then
    remove(holes)
    open.tail = remove(holes)
  end
  M.forget_if_unused(open)
  return true
end

-- The position of the first hole that is not before an interval; nil when a hole overlaps with it.
local function gap(open, start, stop)
  local holes, slack = open.holes, slack_of(open.rule)
  local at = #holes + 1
  for i = 1, #holes, 2 do
    if holes[i] >= start then
      at = i
      break
    end
  end
  local before, after = at > 1 and holes[at - 1] or start, holes[at] or stop
  if before > start + slack or after < stop - slack then return nil end
  return at, before, after
end

function M.usable(open)
  local kept, holes = {}, open.holes
  for i = 1, #holes, 2 do
    if left(open.rule, holes[i], holes[i + 1]) >= open.rule.per then
      kept[#kept + 1] = holes[i]
      kept[#kept + 1] = holes[i + 1]
    end
  end
  open.holes = kept
end

function M.leave_free(open, start, stop)
  if left(open.rule, start, stop) < open.rule.per then return false end
  local at, before, after = gap(open, start, stop)
  if not at then return false end
  local holes = open.holes
  start, stop = max(start, before), min(stop, after)
  insert_hole(holes, at, start, stop)
  if holes[at + 2] == stop then
    remove(holes, at + 1)
    remove(holes, at + 1)
  end
  if at > 1 and holes[at - 1] == start then
    remove(holes, at - 1)
    remove(holes, at - 1)
  end
  M.usable(open)
  drop_shortest_above_bound(open.holes)
  return true
end

-- Returns the interval of an unused grant; false when the state has nothing (left) of it.
function M.refund(open, whole, ticks, born, _, cost)
  local start, stop = M.interval(open, whole, ticks, cost)
  if born ~= open.born or stop > open.tail then return false end
  local given = M.undo_last(open, start, stop) or M.leave_free(open, start, stop)
  if open.credit then require('timeline.credit').tidy(open) end
  return given
end

return M
