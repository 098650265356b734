-- A rate that rises from cold to full while it is used. Twin of warm_up.rs, which explains the rule. The arithmetic is the same where
-- it is not in integers, too.
--
-- An open state is that of the twin: its rule has the numbers per, den, most, window and factor, and `fall`, `threshold` and
-- `steep`, which follow from them. Its holes are { start1, end1, cold1, start2, ... }. A stored state: what `write` packs, and for
-- each hole its start and end in ticks before the tail and its coldness. WarmUp::new keeps every sum below 2^53.

local common, holes_of = require 'common', require 'timeline.holes'
local M = { kind = 87, lease = false, born_at = 59 }

local ceil, floor, max, min, clip = math.ceil, math.floor, math.max, math.min, holes_of.clip
local VERSION, MAX_BUDGET, ceil_div = common.VERSION, common.MAX_BUDGET, common.ceil_div

local HEAD, WIDTH = '<BBi8i8i8i8i8i8i8i8i8i8', 3

function M.pace(rule) return rule.per, rule.den end

function M.used_up(rule, now, _, to)
  return struct.pack(HEAD, VERSION, M.kind, rule.per, rule.den, rule.most, rule.window, rule.factor, to, 0, now, now, rule.window)
end

local function absolute(rule, now, tick) return now + floor(tick / rule.den), tick % rule.den end

local function with_curve(rule)
  local factor = rule.factor / 1000
  rule.fall = 2 * (1000 + rule.factor) / (5000 + rule.factor)
  rule.threshold = rule.window * rule.fall / 2
  rule.steep = (factor * factor - 1) / (4 * rule.fall * rule.fall) / rule.window
  return rule
end

local function far(rule) return floor((rule.most * rule.per + rule.window) / rule.den) + 2 * MAX_BUDGET end

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

local function stop_of(rule, hole_start, cold, start, cost)
  local length = spend(rule, idle(rule, cold, start - hole_start), cost)
  return start + length
end

local function place(rule, hole_start, stop, cold, from, cost)
  local start = clip(rule, hole_start, from)
  if stop_of(rule, hole_start, cold, start, cost) <= stop then return start end
end

local function is_usable(rule, start, stop, cold) return place(rule, start, stop, cold, 0, 1) ~= nil end

local function reset_after(open)
  local den = open.rule.den
  local part = open.tail % den ~= 0 and 1 or 0
  local cold = ceil_div(open.tail + open.rule.window - open.cold, den)
  return max(cold, ceil_div(open.tail, den) + part, 0)
end

local function spread(open, first, stop, was, is)
  local rule, holes = open.rule, open.holes
  for i = first, #holes, WIDTH do
    local length, before = holes[i + 1] - holes[i], holes[i + 2]
    local cold = coldness_after(rule, before, holes[i] - stop, was, is)
    was, is = idle(rule, before, length), idle(rule, cold, length)
    holes[i + 2], stop = cold, holes[i + 1]
  end
  open.cold = coldness_after(rule, open.cold, open.tail - stop, was, is)
end

local function tidy(open) holes_of.tidy(open, WIDTH, is_usable) end

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
  return a.per == b.per and a.den == b.den and a.most == b.most and a.window == b.window and a.factor == b.factor
end

local function convert_holes(holes, raw, tail, old, new)
  local free_from = -math.huge
  for at = 83, #raw, 24 do
    local s, e, c = struct.unpack('<i8i8i8', raw, at)
    local after = floor(e / old.per * new.per)
    if after < tail then
      local length = ceil((s - e) / old.per * new.per)
      length = min(length, tail - after + new.window)
      local start = max(tail - after - length, free_from)
      local cold = min(ceil(c / old.window * new.window), new.window)
      local stop = start + length
      if stop <= tail and is_usable(new, start, stop, cold) then
        holes_of.insert(holes, #holes + 1, start, stop, cold)
        free_from = stop
      end
    end
  end
end

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
  open.holes = holes_of.read(raw, 83, WIDTH, rule, tail, is_usable)
  return open
end

function M.earliest(open, from, cost)
  local rule, holes, start = open.rule, open.holes, nil
  for i = 1, #holes, WIDTH do
    start = place(rule, holes[i], holes[i + 1], holes[i + 2], from, cost)
    if start then break end
  end
  start = start or clip(rule, open.tail, from)
  return max(ceil_div(start, rule.den), from), start
end

function M.take(open, start, cost)
  local rule, holes, i, aux = open.rule, open.holes, 1
  while i <= #holes and (holes[i] > start or stop_of(rule, holes[i], holes[i + 2], start, cost) > holes[i + 1]) do i = i + WIDTH end
  if i <= #holes then
    local hole_start, stop, hole_cold = holes[i], holes[i + 1], holes[i + 2]
    holes_of.remove(holes, i, WIDTH)
    aux = idle(rule, hole_cold, start - hole_start)
    local length, cold = spend(rule, aux, cost)
    local rest = start + length
    spread(open, i, stop, idle(rule, hole_cold, stop - hole_start), idle(rule, cold, stop - rest))
    holes_of.insert(holes, i, rest, stop, cold)
    holes_of.insert(holes, i, hole_start, start, hole_cold)
  else
    if is_usable(rule, open.tail, start, open.cold) then holes_of.insert(holes, i, open.tail, start, open.cold) end
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
  if open.tail - stop <= holes_of.slack(rule) then
    open.cold = max(min(cold + open.cold - left, rule.window), 0)
    open.cold = holes_of.move_back(open, start, WIDTH) or open.cold
    if reset_after(open) == 0 then
      open.tail, open.cold, open.born, open.holes = 0, rule.window, open.now, {}
    end
    return true
  end
  local at, first, last
  if is_usable(rule, start, stop, cold) then at, first, last = holes_of.gap(open, start, stop, WIDTH) end
  if not at then return false end
  -- A hole that ends where this one begins becomes a part of it.
  if holes[at - 2] == first then cold = idle(rule, holes[at - 1], first - holes[at - WIDTH]) end
  local _, cold_after = spend(rule, cold, cost)
  spread(open, at, last, cold_after, idle(rule, cold, length))
  holes_of.join(holes, at, first, last, WIDTH, cold)
  tidy(open)
  return true
end

function M.level(open)
  local next = M.earliest(open, 0, 1)
  return next == 0 and 1 or 0, next, reset_after(open)
end

M.lasts = reset_after

function M.write(open)
  local rule = open.rule
  local whole, ticks = absolute(rule, open.now, open.tail)
  local raw = struct.pack(
    HEAD, VERSION, M.kind, rule.per, rule.den, rule.most, rule.window, rule.factor,
    whole, ticks, open.born, open.now, open.cold)
  return holes_of.write(raw, open.holes, WIDTH, open.tail)
end

return M
