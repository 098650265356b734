-- The free intervals before the tail of a line of time: permits that come back make them, and later requests take them. Twin of
-- timeline/holes.rs. A hole is `width` numbers of a list: its start, its end, and where a line warms up the coldness there.

local common = require 'common'
local M = {}

local floor, max, min, insert, remove = math.floor, math.max, math.min, table.insert, table.remove
local pack, unpack_from = struct.pack, struct.unpack
local FORMS = { nil, '<i8i8', '<i8i8i8' }

-- `start`, or `from` (µs) when `start` is a µs or more before it.
function M.clip(rule, start, from)
  from = from * rule.den
  if start <= from - rule.den then return from end
  return start
end

local function left(rule, start, stop) return stop - max(start, 1 - rule.den) end

local function is_usable(rule, start, stop) return left(rule, start, stop) >= rule.per end

function M.slack(rule) return min(2 * rule.den + 2, floor(rule.per / 4)) end

local function add(holes, width, start, stop, cold)
  local n = #holes
  holes[n + 1], holes[n + 2] = start, stop
  if width == 3 then holes[n + 3] = cold end
end

function M.insert(holes, i, start, stop, cold)
  if cold then insert(holes, i, cold) end
  insert(holes, i, stop)
  insert(holes, i, start)
end

function M.remove(holes, i, width)
  for _ = 1, width do remove(holes, i) end
end

-- The holes of a stored line that `is_one` accepts, from its byte `first` on, each in ticks before the tail.
function M.read(raw, first, width, rule, tail, is_one)
  local holes = {}
  for at = first, #raw, 8 * width do
    local start, stop, cold = unpack_from(FORMS[width], raw, at)
    start, stop = tail - start, tail - stop
    if is_one(rule, start, stop, cold) then add(holes, width, start, stop, cold) end
  end
  return holes
end

function M.write(raw, holes, width, tail)
  local parts = { raw }
  for i = 1, #holes, width do parts[#parts + 1] = pack(FORMS[width], tail - holes[i], tail - holes[i + 1], holes[i + 2]) end
  return table.concat(parts)
end

local function drop_shortest_above_bound(holes, width)
  while #holes > width * common.MAX_HOLES do
    local shortest, length = 1, holes[2] - holes[1]
    for i = 1 + width, #holes, width do
      if holes[i + 1] - holes[i] <= length then shortest, length = i, holes[i + 1] - holes[i] end
    end
    M.remove(holes, shortest, width)
  end
end

function M.tidy(open, width, is_one)
  local kept, holes = {}, open.holes
  for i = 1, #holes, width do
    if is_one(open.rule, holes[i], holes[i + 1], holes[i + 2]) then add(kept, width, holes[i], holes[i + 1], holes[i + 2]) end
  end
  drop_shortest_above_bound(kept, width)
  open.holes = kept
end

-- Moves the tail back to `start`, or to the start of the last hole where that ends there. Returns the coldness of such a hole.
function M.move_back(open, start, width)
  local holes = open.holes
  local last = #holes + 1 - width
  open.tail = start
  if last < 1 or holes[last + 1] + M.slack(open.rule) < start then return nil end
  local cold = holes[last + 2]
  open.tail = holes[last]
  M.remove(holes, last, width)
  return cold
end

-- The position of the first hole that is not before an interval, and what is free of that; nil when a hole overlaps with it.
function M.gap(open, start, stop, width)
  local holes, slack, at = open.holes, M.slack(open.rule), 1
  while at <= #holes and holes[at] < start do at = at + width end
  local before, after = holes[at - width + 1] or start, holes[at] or stop
  if before > start + slack or after < stop - slack then return nil end
  return at, max(start, before), min(stop, after)
end

-- Makes a hole, and unites it with those that it touches.
function M.join(holes, at, start, stop, width, cold)
  M.insert(holes, at, start, stop, cold)
  if holes[at + width] == stop then
    holes[at + 1] = holes[at + width + 1]
    M.remove(holes, at + width, width)
  end
  if holes[at - width + 1] == start then
    holes[at - width + 1] = holes[at + 1]
    M.remove(holes, at, width)
  end
end

-- === holes without a coldness

local function is_ahead(_, _, stop) return stop > 0 end

-- `with_short`: also those that are too short for a permit by now.
function M.read_all(raw, first, rule, tail, with_short)
  return M.read(raw, first, 2, rule, tail, with_short and is_ahead or is_usable)
end

function M.usable(open) M.tidy(open, 2, is_usable) end

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
    if hole_end - stop >= per then M.insert(holes, found, stop, hole_end) end
    if is_usable(rule, hole_start, start) then M.insert(holes, found, hole_start, start) end
  else
    if start - open.tail >= per then M.insert(holes, #holes + 1, open.tail, start) end
    open.tail = stop
  end
  drop_shortest_above_bound(holes, 2)
end

-- The ticks that a grant owns on a line that has not moved since it was made.
function M.interval(open, whole, ticks, cost)
  local rule = open.rule
  local most = floor(rule.most * rule.per / rule.den) + 2 * common.MAX_BUDGET
  local start = common.clamp(whole - open.now, most) * rule.den + ticks
  return start, start + cost * rule.per
end

function M.forget_if_unused(open)
  if open.tail == 0 or open.tail <= -open.rule.den then open.tail, open.born, open.credit, open.holes = 0, open.now, nil, {} end
end

function M.undo_last(open, start, stop)
  if open.tail - stop > M.slack(open.rule) then return false end
  M.move_back(open, start, 2)
  M.forget_if_unused(open)
  return true
end

function M.leave_free(open, start, stop)
  if not is_usable(open.rule, start, stop) then return false end
  local at, first, last = M.gap(open, start, stop, 2)
  if not at then return false end
  M.join(open.holes, at, first, last, 2)
  M.usable(open)
  return true
end

-- Returns an interval, in ticks from now; false when nothing of it can be used.
function M.leave(open, start, stop)
  return stop <= open.tail and (M.undo_last(open, start, stop) or M.leave_free(open, start, stop))
end

function M.refund(open, whole, ticks, born, _, cost)
  local start, stop = M.interval(open, whole, ticks, cost)
  local given = born == open.born and M.leave(open, start, stop)
  if open.credit then require('timeline.credit').tidy(open) end
  return given
end

return M
