-- A rate that rises from cold to full while it is used. Twin of warm_up.rs, which explains the rule: same
-- names, same order, same arithmetic, also where it is not in integers. Pure: no redis.call.
--
-- An open state is a table, everything in ticks from now:
--   rule   { per, den, most, window, factor, ... }   ticks a permit, ticks a µs, the greatest cost, the
--          warm-up in ticks, the cold factor in thousandths; fall, threshold and steep follow from them
--   now    µs    of the store's clock
--   born   µs    when the state came into being
--   tail   tick  end of the reserved line
--   cold   tick  the coldness there
--   holes  { { start, stop, cold }, ... }  free intervals before the tail, earliest first
--
-- A stored state: version (1 byte), kind (1 byte), then 8 bytes each, little-endian: per, den, most, window,
-- factor, tail in µs, its ticks, born, written, cold, and for each hole its start and end in ticks before the
-- tail and its coldness. WarmUp::new keeps every sum below 2^53.

local common = require 'common'
local M = { kind = 87, lease = false, born_at = 59 }

local ceil, floor, max, min, insert, remove = math.ceil, math.floor, math.max, math.min, table.insert, table.remove
local VERSION, MAX_BUDGET, ceil_div = common.VERSION, common.MAX_BUDGET, common.ceil_div

local HEAD, HOLE = '<BBi8i8i8i8i8i8i8i8i8i8', '<i8i8i8'
function M.used_up(rule, now, _, to)
  return struct.pack(
    HEAD, VERSION, M.kind, rule.per, rule.den, rule.most, rule.window, rule.factor,
    to, 0, now, now, rule.window)
end

-- As in timeline.lua.
local function clip(rule, start, from)
  from = from * rule.den
  if start <= from - rule.den then return from end
  return start
end

local function slack_of(rule) return min(2 * rule.den + 2, floor(rule.per / 4)) end

local function absolute(rule, now, tick) return now + floor(tick / rule.den), tick % rule.den end

local function with_curve(rule)
  local factor = rule.factor / 1000
  rule.fall = 2 * (1000 + rule.factor) / (5000 + rule.factor)
  rule.threshold = rule.window * rule.fall / 2
  rule.steep = (factor * factor - 1) / (4 * rule.fall * rule.fall) / rule.window
  return rule
end

local function far(rule)
  return floor((rule.most * rule.per + rule.window) / rule.den) + 2 * MAX_BUDGET
end

local function spend(rule, cold, cost)
  local stable = cost * rule.per
  local used, threshold = stable * rule.fall, rule.threshold
  local above = max(cold - threshold, 0)
  local left = max(cold - used - threshold, 0)
  local extra = (above - left) * (above + left) * rule.steep
  return stable + ceil(extra), max(cold - floor(used), 0)
end

local function idle(rule, cold, span) return min(cold + span, rule.window) end

local function coldness_after(rule, cold, busy, was, is)
  local shifted = cold + is - was
  if cold == 0 and is > was then
    local above = max(was - rule.threshold, 0)
    local used = (busy - above * above * rule.steep) * rule.fall
    shifted = min(shifted, is - floor(used))
  end
  return max(min(shifted, rule.window), 0)
end

local function span(hole) return hole.stop - hole.start end

local function stop_of(rule, hole, start, cost)
  local length = spend(rule, idle(rule, hole.cold, start - hole.start), cost)
  return start + length
end

local function place(rule, hole, from, cost)
  local start = clip(rule, hole.start, from)
  if stop_of(rule, hole, start, cost) <= hole.stop then return start end
end

local function reset_after(open)
  local den = open.rule.den
  local part = open.tail % den ~= 0 and 1 or 0
  local cold = ceil_div(open.tail + open.rule.window - open.cold, den)
  return max(cold, ceil_div(open.tail, den) + part, 0)
end

local function spread(open, first, stop, was, is)
  local rule, holes = open.rule, open.holes
  for i = first, #holes do
    local hole = holes[i]
    local cold = coldness_after(rule, hole.cold, hole.start - stop, was, is)
    was, is = idle(rule, hole.cold, span(hole)), idle(rule, cold, span(hole))
    hole.cold, stop = cold, hole.stop
  end
  open.cold = coldness_after(rule, open.cold, open.tail - stop, was, is)
end

local function tidy(open)
  local kept = {}
  for _, hole in ipairs(open.holes) do
    if place(open.rule, hole, 0, 1) then kept[#kept + 1] = hole end
  end
  while #kept > common.MAX_HOLES do
    local shortest = 1
    for i, hole in ipairs(kept) do
      if span(hole) <= span(kept[shortest]) then shortest = i end
    end
    remove(kept, shortest)
  end
  open.holes = kept
end

local function converted(tail, cold, old, new)
  cold = idle(old, cold, max(-tail, 0))
  local owed = tail / old.per
  local most = new.most * new.per + new.window + MAX_BUDGET * new.den
  tail = min(max(ceil(owed * new.per), 0), most)
  cold = ceil(cold / old.window * new.window)
  return tail, min(cold, new.window)
end

function M.rule(text, from)
  local per, den, most, window, factor = struct.unpack('<ddddd', text, from)
  return with_curve({ per = per, den = den, most = most, window = window, factor = factor })
end

local function same(a, b)
  return a.per == b.per and a.den == b.den and a.most == b.most and a.window == b.window
    and a.factor == b.factor
end

local function convert_holes(holes, raw, tail, old, new)
  local free_from = -math.huge
  for at = 83, #raw, 24 do
    local s, e, c = struct.unpack(HOLE, raw, at)
    local after = floor(e / old.per * new.per)
    if after < tail then
      local length = ceil((s - e) / old.per * new.per)
      length = min(length, tail - after + new.window)
      local start = max(tail - after - length, free_from)
      local cold = min(ceil(c / old.window * new.window), new.window)
      local hole = { start = start, stop = start + length, cold = cold }
      if hole.stop <= tail and place(new, hole, 0, 1) then
        holes[#holes + 1] = hole
        free_from = hole.stop
      end
    end
  end
end

-- nil for a value that this version did not write
function M.read(raw, now, rule)
  local open = { rule = rule, now = now, born = now, tail = 0, cold = rule.window, holes = {} }
  if not raw then return open end
  if #raw < 82 or (#raw - 82) % 24 ~= 0 then return nil end
  local version, kind, per, den, most, window, factor, whole, ticks, born, written, cold =
    struct.unpack(HEAD, raw)
  if version ~= VERSION or kind ~= M.kind then return nil end
  if per < den or den < 1 or most < 1 or window < 1 or factor <= 1000 then return nil end
  if cold < 0 or cold > window then return nil end
  local old = { per = per, den = den, most = most, window = window, factor = factor }
  local function tail_at(instant) return common.clamp(whole - instant, far(old)) * den + ticks end
  local tail = tail_at(now)
  if tail <= -den and cold - tail >= window then return open end
  if not same(old, rule) then
    local since = max(common.clamp(now - written, far(rule)), 0)
    local before = converted(tail_at(min(written, now)), cold, old, rule)
    tail, cold = converted(tail, cold, old, rule)
    if tail > 0 then tail = min(tail, before - since * rule.den) end
    local forgotten = tail <= -rule.den and cold - tail >= rule.window
    if not forgotten then
      open.tail, open.cold, open.born = tail, cold, born
      convert_holes(open.holes, raw, tail, old, rule)
    end
    return open
  end
  open.tail, open.cold, open.born = tail, cold, born
  for at = 83, #raw, 24 do
    local s, e, c = struct.unpack(HOLE, raw, at)
    local hole = { start = tail - s, stop = tail - e, cold = c }
    if place(rule, hole, 0, 1) then open.holes[#open.holes + 1] = hole end
  end
  return open
end

function M.earliest(open, from, cost)
  local rule, start = open.rule, nil
  for _, hole in ipairs(open.holes) do
    start = place(rule, hole, from, cost)
    if start then break end
  end
  start = start or clip(rule, open.tail, from)
  return max(ceil_div(start, rule.den), from), start
end

function M.take(open, start, cost)
  local rule, holes = open.rule, open.holes
  local found
  for i, hole in ipairs(holes) do
    if hole.start <= start and stop_of(rule, hole, start, cost) <= hole.stop then
      found = i
      break
    end
  end
  local aux
  if found then
    local hole = remove(holes, found)
    aux = idle(rule, hole.cold, start - hole.start)
    local length, cold = spend(rule, aux, cost)
    local rest = { start = start + length, stop = hole.stop, cold = cold }
    spread(open, found, hole.stop, idle(rule, hole.cold, span(hole)), idle(rule, cold, span(rest)))
    insert(holes, found, rest)
    insert(holes, found, { start = hole.start, stop = start, cold = hole.cold })
  else
    local gap = { start = open.tail, stop = start, cold = open.cold }
    if place(rule, gap, 0, 1) then holes[#holes + 1] = gap end
    aux = idle(rule, open.cold, start - open.tail)
    local length, cold = spend(rule, aux, cost)
    open.tail, open.cold = start + length, cold
  end
  tidy(open)
  local whole, ticks = absolute(rule, open.now, start)
  return whole, ticks, open.born, aux
end

function M.refund(open, whole, ticks, born, aux, cost)
  local rule, holes = open.rule, open.holes
  local start = common.clamp(whole - open.now, far(rule)) * rule.den + ticks
  local cold = max(min(aux, rule.window), 0)
  local length, left = spend(rule, cold, cost)
  local stop = start + length
  if born ~= open.born or stop > open.tail then return false end
  local slack = slack_of(rule)
  if open.tail - stop <= slack then
    open.tail, open.cold = start, max(min(cold + open.cold - left, rule.window), 0)
    if #holes > 0 and holes[#holes].stop + slack >= start then
      local hole = remove(holes)
      open.tail, open.cold = hole.start, hole.cold
    end
    if reset_after(open) == 0 then
      open.tail, open.cold, open.born, open.holes = 0, rule.window, open.now, {}
    end
    return true
  end
  if not place(rule, { start = start, stop = stop, cold = cold }, 0, 1) then return false end
  local at = #holes + 1
  for i, hole in ipairs(holes) do
    if hole.start >= start then
      at = i
      break
    end
  end
  local before, after = holes[at - 1], holes[at]
  if (before and before.stop > start + slack) or (after and after.start < stop - slack) then return false end
  if before then start = max(start, before.stop) end
  if after then stop = min(stop, after.start) end
  local joins = before and before.stop == start
  if joins then cold = idle(rule, before.cold, span(before)) end
  local _, cold_after = spend(rule, cold, cost)
  spread(open, at, stop, cold_after, idle(rule, cold, length))
  local hole = { start = start, stop = stop, cold = cold }
  insert(holes, at, hole)
  if after and after.start == stop then
    hole.stop = after.stop
    remove(holes, at + 1)
  end
  if joins then
    before.stop = hole.stop
    remove(holes, at)
  end
  tidy(open)
  return true
end

-- remaining, next, reset_after
function M.level(open)
  local next = M.earliest(open, 0, 1)
  return next == 0 and 1 or 0, next, reset_after(open)
end

-- the value to keep and for how many µs it matters; nil when it equals an absent one
function M.write(open)
  local ttl = reset_after(open)
  if ttl <= 0 then return nil end
  local rule = open.rule
  local whole, ticks = absolute(rule, open.now, open.tail)
  local parts = { struct.pack(
    HEAD, VERSION, M.kind, rule.per, rule.den, rule.most, rule.window, rule.factor,
    whole, ticks, open.born, open.now, open.cold) }
  for i, hole in ipairs(open.holes) do
    parts[i + 1] = struct.pack(HOLE, open.tail - hole.start, open.tail - hole.stop, hole.cold)
  end
  return table.concat(parts), ttl
end
return M
