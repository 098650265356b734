-- A virtual line of time on which permits own disjoint intervals, reserved ahead. Twin of timeline.rs, which
-- explains it: same names, same order, same arithmetic. Pure: no redis.call.
--
-- An open state is a table, everything in ticks from now:
--   rule   { per, den, most, ... }   ticks a permit, ticks a µs, the greatest cost
--   now    µs    of the store's clock
--   born   µs    when the state came into being
--   tail   tick  end of the reserved line
--   moved  ticks by which the line was moved back since it came into being
--   holes  { start1, end1, start2, end2, ... }  free intervals before the tail, earliest first
--
-- A stored state: version (1 byte), kind (1 byte), then 8 bytes each, little-endian: per, den, most, tail in
-- µs, its ticks, born, written, if the kind is a small letter moved, and for each hole its start and end in
-- ticks before the tail. Pace::new keeps every sum below 2^53.

-- `start`, or `from` (µs) when `start` is a µs or more before it.
local function clip(rule, start, from)
  from = from * rule.den
  if start <= from - rule.den then return from end
  return start
end

local function left(rule, start, stop) return stop - math.max(start, 1 - rule.den) end

local function slack_of(rule) return math.min(2 * rule.den + 2, math.floor(rule.per / 4)) end

local function absolute(rule, now, tick) return now + math.floor(tick / rule.den), tick % rule.den end

-- Whether slots later than the next one, which comes in `next` µs, are taken: only holes come before the tail. After a
-- line was moved back, grants keep their instants and the tail may come before these.
local function is_taken_after(algorithm)
  return function(open, next)
    local holes = open.holes
    if #holes == 0 then return next > 0 and (open.moved or 0) > 0 end
    open.holes = {}
    local last = algorithm.earliest(open, 0, 1)
    open.holes = holes
    return last > next
  end
end

-- Puts an algorithm on a timeline: `saved(rule)` returns the permits that an idle line grants at once. The
-- algorithm brings its own rule, same, earliest and level, for which it gets free and reset_after. With
-- `ahead(open)`, how far from now its grants can be in µs, used permits are refunded, too.
local function on_a_timeline(algorithm, saved, ahead)
local HEAD, HOLE, MOVED = '<BBi8i8i8i8i8i8i8', '<i8i8', 32
-- How far a line is moved back before the count begins again, ticks.
local MOST_MOVED = 1125899906842624

local function far(rule) return math.floor(rule.most * rule.per / rule.den) + 2 * MAX_BUDGET end

local function reset_after(open)
  local part = open.tail % open.rule.den ~= 0 and 1 or 0
  return math.max(ceil_div(open.tail, open.rule.den) + part, 0)
end

local function drop_shortest_above_bound(holes)
  while #holes > 2 * MAX_HOLES do
    local shortest, length = 1, holes[2] - holes[1]
    for i = 3, #holes, 2 do
      if holes[i + 1] - holes[i] <= length then shortest, length = i, holes[i + 1] - holes[i] end
    end
    table.remove(holes, shortest)
    table.remove(holes, shortest)
  end
end

local function insert_hole(holes, i, s, e)
  table.insert(holes, i, e)
  table.insert(holes, i, s)
end

local function free(open, from, length)
  local rule, holes = open.rule, open.holes
  local too_early = (from - 1) * rule.den
  for i = 1, #holes, 2 do
    -- A request that left may have started less than a µs before `from`, which a larger hole does not show.
    local s = math.min(clip(rule, holes[i], from), holes[i + 1] - length)
    if s >= holes[i] and s > too_early then return s end
  end
  return clip(rule, open.tail, from)
end

local function take(open, start, cost)
  local per, holes = open.rule.per, open.holes
  local stop = start + cost * per
  local found
  for i = 1, #holes, 2 do
    if holes[i] <= start and stop <= holes[i + 1] then
      found = i
      break
    end
  end
  if found then
    local hole_start = table.remove(holes, found)
    local hole_end = table.remove(holes, found)
    if hole_end - stop >= per then insert_hole(holes, found, stop, hole_end) end
    if left(open.rule, hole_start, start) >= per then insert_hole(holes, found, hole_start, start) end
  else
    if start - open.tail >= per then insert_hole(holes, #holes + 1, open.tail, start) end
    open.tail = stop
  end
  drop_shortest_above_bound(holes)
  local whole, ticks = absolute(open.rule, open.now, start + open.moved)
  return whole, ticks, open.born, 0
end

-- The ticks that a grant owns if all moves of the line since it was made moved it, too.
local function interval(open, whole, ticks, cost)
  local rule, moved = open.rule, open.moved
  local most = far(rule) + ceil_div(moved, rule.den)
  local start = clamp(whole - open.now, most) * rule.den + ticks - moved
  return start, start + cost * rule.per
end

local function undo_last(open, start, stop)
  local holes, slack = open.holes, slack_of(open.rule)
  if open.tail - stop > slack then return false end
  open.tail = start
  if holes[#holes] and holes[#holes] + slack >= start then
    table.remove(holes)
    open.tail = table.remove(holes)
  end
  if reset_after(open) == 0 then open.tail, open.born, open.moved, open.holes = 0, open.now, 0, {} end
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

local function usable(open)
  local kept, holes = {}, open.holes
  for i = 1, #holes, 2 do
    if left(open.rule, holes[i], holes[i + 1]) >= open.rule.per then
      kept[#kept + 1] = holes[i]
      kept[#kept + 1] = holes[i + 1]
    end
  end
  open.holes = kept
end

local function leave_free(open, start, stop)
  if left(open.rule, start, stop) < open.rule.per then return false end
  local at, before, after = gap(open, start, stop)
  if not at then return false end
  local holes = open.holes
  start, stop = math.max(start, before), math.min(stop, after)
  insert_hole(holes, at, start, stop)
  if holes[at + 2] == stop then
    table.remove(holes, at + 1)
    table.remove(holes, at + 1)
  end
  if at > 1 and holes[at - 1] == start then
    table.remove(holes, at - 1)
    table.remove(holes, at - 1)
  end
  usable(open)
  drop_shortest_above_bound(open.holes)
  return true
end

local function refund(open, whole, ticks, born, _, cost)
  local start, stop = interval(open, whole, ticks, cost)
  if born ~= open.born or stop > open.tail then return false end
  return undo_last(open, start, stop) or leave_free(open, start, stop)
end

local function settle(open, whole, ticks, born, aux, cost)
  local is_used, is_exact = ticks < 0, open.moved == 0
  if is_used then ticks = -1 - ticks end
  if is_exact and not is_used then return refund(open, whole, ticks, born, aux, cost) end
  local rule, start, stop = open.rule, interval(open, whole, ticks, cost)
  if born ~= open.born or stop > open.tail then return false end
  if undo_last(open, start, stop) then return true end
  local back = math.min(stop - start, stop - ahead(open) * rule.den)
  if back < 1 then return is_exact and leave_free(open, start, stop) end
  if is_exact and not gap(open, start, stop) then return false end
  local holes = open.holes
  for i = 1, #holes, 2 do
    if is_exact and holes[i] >= stop then
      holes[i], holes[i + 1] = holes[i] - back, holes[i + 1] - back
    elseif holes[i + 1] > start then
      -- It may lie before the permits or after them: what is free in both cases stays.
      holes[i + 1] = holes[i + 1] - back
    end
  end
  open.tail, open.moved = open.tail - back, open.moved + back
  usable(open)
  if is_exact then leave_free(open, start, stop - back) end
  if open.moved >= MOST_MOVED then open.moved, open.born = 0, open.now end
  return true
end

in_one_string(algorithm, function(rule, now, _, to)
  return struct.pack(HEAD, VERSION, algorithm.kind, rule.per, rule.den, rule.most, to, 0, now, now)
end, 43)
algorithm.take, algorithm.refund = take, ahead and settle or refund
algorithm.is_taken_after = is_taken_after(algorithm)

-- The tick of the new line for the tick at which an interval ends on the old one, of a line that is written now.
local function converted_at(tick, old, new)
  local ahead = tick - saved(old) * old.per
  if ahead > 0 then return saved(new) * new.per + ahead * new.den / old.den end
  return math.max(tick / old.per + (saved(new) - saved(old)), 0) * new.per
end

-- Converts the tail and the holes (before the tail) of a line of `old`, which was written `since` µs ago, to a line of
-- `new` (from now).
local function convert(holes, raw, first, tail, since, old, new)
  local function converted_end(tick)
    local flowed = converted_at(tick + since * old.den, old, new) - since * new.den
    return math.min(converted_at(tick, old, new), flowed)
  end
  local new_tail = math.min(math.ceil(converted_end(tail)), new.most * new.per + MAX_BUDGET * new.den)
  if new_tail <= -new.den then return nil end
  local free_from = -math.huge
  for at = first, #raw, 16 do
    local s, e = struct.unpack(HOLE, raw, at)
    -- The permits after a hole may be of either pace, and a slower one lets them begin earlier.
    local before_old = math.floor(converted_end(tail - e + old.per)) - new.per
    e = math.min(before_old, math.floor(converted_end(tail - e)))
    s = math.max(math.ceil(converted_end(tail - s)), free_from)
    if left(new, s, e) >= new.per then
      holes[#holes + 1] = s
      holes[#holes + 1] = e
      free_from = e
    end
  end
  return new_tail
end

-- nil for a value that this version did not write
function algorithm.read(raw, now, rule)
  local open = { rule = rule, now = now, born = now, moved = 0, tail = 0, holes = {} }
  if not raw then return open end
  if #raw < 58 then return nil end
  local version, kind, per, den, most, whole, ticks, born, written = struct.unpack(HEAD, raw)
  local moved, first = 0, 59
  if ahead and kind == algorithm.kind + MOVED and #raw >= 66 then
    kind, moved, first = algorithm.kind, struct.unpack('<i8', raw, 59), 67
  end
  if version ~= VERSION or kind ~= algorithm.kind or (#raw + 1 - first) % 16 ~= 0 then return nil end
  if per < den or den < 1 or most < 1 then return nil end
  local old = { per = per, den = den, most = most }
  local function tail_at(instant) return clamp(whole - instant, far(old)) * den + ticks end
  local tail = tail_at(now)
  if tail <= -den then return open end
  if per ~= rule.per or den ~= rule.den or most ~= rule.most then
    local since = math.max(clamp(now - written, math.min(far(old), far(rule))), 0)
    local new_tail = convert(open.holes, raw, first, tail, since, old, rule)
    if new_tail then open.tail, open.born = new_tail, moved > 0 and now or born end
    return open
  end
  open.tail, open.born, open.moved = tail, born, moved
  local holes = open.holes
  for at = first, #raw, 16 do
    local s, e = struct.unpack(HOLE, raw, at)
    s, e = tail - s, tail - e
    if left(rule, s, e) >= rule.per then
      holes[#holes + 1] = s
      holes[#holes + 1] = e
    end
  end
  return open
end

-- The value to keep and for how many µs it matters; nil when it equals an absent one.
function algorithm.write(open)
  local ttl = reset_after(open)
  if ttl <= 0 then return nil end
  local rule, holes = open.rule, open.holes
  local whole, ticks = absolute(rule, open.now, open.tail)
  local kind = open.moved > 0 and algorithm.kind + MOVED or algorithm.kind
  local raw = struct.pack(
    HEAD, VERSION, kind, rule.per, rule.den, rule.most, whole, ticks, open.born, open.now)
  if open.moved > 0 then raw = raw .. struct.pack('<i8', open.moved) end
  if #holes == 0 then return raw, ttl end
  local parts = { raw }
  for i = 1, #holes, 2 do
    parts[#parts + 1] = struct.pack(HOLE, open.tail - holes[i], open.tail - holes[i + 1])
  end
  return table.concat(parts), ttl
end

return free, reset_after
end
