-- A virtual line of time on which permits own disjoint intervals, reserved ahead. Twin of timeline.rs, which explains it.
--
-- An open state is that of the twin, with the numbers of its pace in `rule`: the `kind` of its algorithm, per, den, most, and
-- `saved`, the permits that an idle line grants at once. Its holes are { start1, end1, start2, end2, ... }.
--
-- A stored state: what `write` packs, and for each hole its start and end in ticks before the tail. If the kind is a small letter it
-- has the credit: `moved`, and three pairs that end before they begin: promised and so much more as the gap, mark and so much more as
-- is free, `to` and reach. A gateway of before these pairs takes them for holes that are past. Pace::new keeps every sum below 2^53.

local common, credits, holes_of = require 'common', require 'timeline.credit', require 'timeline.holes'
local M = {}

local floor, max, min, pack, unpack_from, clip = math.floor, math.max, math.min, struct.pack, struct.unpack, holes_of.clip
local VERSION, MAX_BUDGET = common.VERSION, common.MAX_BUDGET
local HEAD, MOVED, CREDIT = '<BBi8i8i8i8i8i8i8', 32, '<i8i8i8i8i8i8i8'
local TOKEN_BUCKET = 84

-- Where the birth of a line is in its stored state.
M.BORN_AT = 43

function M.reset_after(open)
  local tail, den = open.tail, open.rule.den
  local after = -floor(-tail / den) + (tail % den ~= 0 and 1 or 0)
  return after > 0 and after or 0
end

function M.free(open, from, length)
  local rule, holes = open.rule, open.holes
  local too_early = (from - 1) * rule.den
  for i = 1, #holes, 2 do
    -- A request that left may have started less than a µs before `from`, which a larger hole does not show.
    local s = min(clip(rule, holes[i], from), holes[i + 1] - length)
    if s >= holes[i] and s > too_early then return s end
  end
  return clip(rule, open.tail, from)
end

-- The start of the first interval of `length` ticks with `kept` free ticks before it.
function M.free_after(open, from, length, kept)
  local rule, holes = open.rule, open.holes
  if open.credit then kept = max(kept - open.credit.free, 0) end
  for i = 1, #holes, 2 do
    local s, e = clip(rule, holes[i], 0), holes[i + 1]
    local skipped = min(kept, max(e - s, 0))
    kept, s = kept - skipped, clip(rule, s + skipped, from)
    if kept == 0 and s + length <= e then return s end
  end
  return clip(rule, clip(rule, open.tail, 0) + kept, from)
end

function M.take(open, start, cost)
  if open.credit then return credits.take(open, start, cost) end
  local rule, holes, tail = open.rule, open.holes, open.tail
  local stop = start + cost * rule.per
  if #holes > 0 or start - tail >= rule.per then
    holes_of.take(open, start, stop)
  else
    open.tail = stop
  end
  return open.now + floor(start / rule.den), start % rule.den, open.born, 0
end

function M.used_up(rule, now, _, to)
  return pack(HEAD, VERSION, rule.kind, rule.per, rule.den, rule.most, to, 0, now, now)
end

-- The credit of a stored state whose tail is at `whole`, and where its holes begin. One that a gateway of before wrote says
-- only how far the tail was moved back: all of its slots count as promised.
local function credit_of(raw, whole)
  local moved, promised, with_gap, mark, with_free, to, reach = unpack_from('<i8', raw, 59), 0, 0, 1, 0, 0, 0
  if #raw >= 114 then moved, promised, with_gap, mark, with_free, to, reach = unpack_from(CREDIT, raw, 59) end
  if with_gap < promised or with_free < mark or reach < to then
    return { free = 0, to = 0, reach = whole + 1, moved = moved, mark = moved, promised = whole + 1, gap = 0 }, 67
  end
  return {
    free = with_free - mark, to = to, reach = reach, moved = moved, mark = mark, promised = promised, gap = with_gap - promised,
  }, 115
end

function M.read(raw, now, rule)
  local open = { rule = rule, now = now, born = now, tail = 0, holes = {}, exists = false }
  if not raw then return open end
  if #raw < 58 then return nil end
  local version, its_kind, per, den, most, whole, ticks, born, written = unpack_from(HEAD, raw)
  local kind, credit, first = rule.kind, nil, 59
  if kind == TOKEN_BUCKET and its_kind == kind + MOVED and #raw >= 66 then
    its_kind, credit, first = kind, credit_of(raw, whole)
  end
  if version ~= VERSION or its_kind ~= kind or (#raw + 1 - first) % 16 ~= 0 then return nil end
  if per < den or den < 1 or most < 1 then return nil end
  local far = floor(most * per / den) + 2 * MAX_BUDGET
  local tail = common.clamp(whole - now, far) * den + ticks
  if tail <= -den then return open end
  if per ~= rule.per or den ~= rule.den or most ~= rule.most then
    local old = { per = per, den = den, most = most, saved = kind == TOKEN_BUCKET and most or 1 }
    local new_tail = require 'timeline.conversion'(open.holes, raw, first, tail, now - written, old, rule)
    if new_tail then
      open.tail, open.born = new_tail, credit and credit.moved + credit.free > 0 and now or born
      if rule.saved > 1 then open.credit = credits.after_change(credit, old, tail, now) end
    end
    return open
  end
  open.tail, open.born, open.credit = tail, born, credit
  -- The rest of a hole that is past in part comes back, too, before it is too short for a permit.
  if first <= #raw then open.holes = holes_of.read_all(raw, first, rule, tail, credit ~= nil) end
  if credit then
    credits.tidy(open)
    holes_of.usable(open)
  end
  return open
end

function M.write(open)
  local rule, tail, credit = open.rule, open.tail, open.credit
  if credit and credit.moved + credit.free == 0 and credit.promised <= open.now then credit = nil end
  local kind = credit and rule.kind + MOVED or rule.kind
  local whole = open.now + floor(tail / rule.den)
  local raw = pack(HEAD, VERSION, kind, rule.per, rule.den, rule.most, whole, tail % rule.den, open.born, open.now)
  if credit then
    local promised, mark, to = credit.promised, credit.mark, credit.to
    raw = raw .. pack(CREDIT, credit.moved, promised, promised + credit.gap, mark, mark + credit.free, to, credit.reach)
  end
  if #open.holes == 0 then return raw end
  return holes_of.write(raw, open.holes, 2, tail)
end

return M
