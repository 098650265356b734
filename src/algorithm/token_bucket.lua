-- Token bucket as a generic cell rate algorithm with reservations. Twin of token_bucket.rs, which
-- explains the rule: same names, same order, same arithmetic. Pure: no redis.call.
--
-- An open state is a table, everything in ticks from now:
--   rule   { per, den, burst }   ticks a permit, ticks a µs, permits
--   now    µs    of the store's clock
--   born   µs    when the state came into being
--   tail   tick  end of the reserved timeline
--   holes  { start1, end1, start2, end2, ... }  free intervals before the tail, earliest first
--
-- A stored state: version (1 byte), kind, per, den, burst, tail in µs, its ticks, born, then for each
-- hole start and end in ticks before the tail; little-endian, 8 bytes each behind the first two.
-- Lua 5.1 numbers are doubles: exact below 2^53, which TokenBucket::new keeps every sum under.
local VERSION, MAX_HOLES, MAX_BUDGET = 1, 2048, 3600000000
local HEAD, HOLE = '<BBi8i8i8i8i8i8', '<i8i8'
local token_bucket = { kind = 84, args = 3 }

local function ceil_div(a, b) return math.ceil(a / b) end

local function clamp(x, far)
  if x > far then return far elseif x < -far then return -far end
  return x
end

-- `start`, or `from` (µs) when `start` is a µs or more before it.
local function clip(rule, start, from)
  from = from * rule.den
  if start <= from - rule.den then return from end
  return start
end

local function converted(tail, old, new)
  local owed = tail / old.per + (new.burst - old.burst)
  local most = new.burst * new.per + MAX_BUDGET * new.den
  return math.min(math.max(math.ceil(owed * new.per), 0), most)
end

function token_bucket.rule(args, i)
  return { per = tonumber(args[i]), den = tonumber(args[i + 1]), burst = tonumber(args[i + 2]) }
end

function token_bucket.same(a, b)
  return a.per == b.per and a.den == b.den and a.burst == b.burst
end

-- nil for a value that this version did not write
function token_bucket.open(raw, now, rule)
  local open = { rule = rule, now = now, born = now, tail = 0, holes = {} }
  if not raw then return open end
  if #raw < 50 or (#raw - 50) % 16 ~= 0 then return nil end
  local version, kind, per, den, burst, whole, ticks, born = struct.unpack(HEAD, raw)
  if version ~= VERSION or kind ~= token_bucket.kind then return nil end
  if per < den or den < 1 or burst < 1 then return nil end
  local far = math.floor(burst * per / den) + 2 * MAX_BUDGET
  local tail = clamp(whole - now, far) * den + ticks
  if tail <= -den then return open end
  local old = { per = per, den = den, burst = burst }
  if not token_bucket.same(old, rule) then
    open.tail = converted(tail, old, rule)
    return open
  end
  open.tail, open.born = tail, born
  local holes = open.holes
  for at = 51, #raw, 16 do
    local s, e = struct.unpack(HOLE, raw, at)
    s, e = tail - s, tail - e
    if clip(rule, s, 0) + rule.per <= e then
      holes[#holes + 1] = s
      holes[#holes + 1] = e
    end
  end
  return open
end

function token_bucket.earliest(open, from, cost)
  local rule = open.rule
  local length = cost * rule.per
  local start
  for i = 1, #open.holes, 2 do
    local s = clip(rule, open.holes[i], from)
    if s + length <= open.holes[i + 1] then
      start = s
      break
    end
  end
  start = start or clip(rule, open.tail, from)
  local at = ceil_div(start + length - rule.burst * rule.per, rule.den)
  return math.max(at, from), start
end

local function absolute(open, tick)
  local den = open.rule.den
  return open.now + math.floor(tick / den), tick % den
end

local function reset_after(open)
  local part = open.tail % open.rule.den ~= 0 and 1 or 0
  return math.max(ceil_div(open.tail, open.rule.den) + part, 0)
end

local function drop_shortest_hole_above_bound(holes)
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

function token_bucket.take(open, start, cost)
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
    if start - hole_start >= per then insert_hole(holes, found, hole_start, start) end
  else
    if start - open.tail >= per then insert_hole(holes, #holes + 1, open.tail, start) end
    open.tail = stop
  end
  drop_shortest_hole_above_bound(holes)
  local whole, ticks = absolute(open, start)
  return whole, ticks, open.born
end

function token_bucket.give_back(open, whole, ticks, born, cost)
  local rule, holes = open.rule, open.holes
  local far = math.floor(rule.burst * rule.per / rule.den) + 2 * MAX_BUDGET
  local start = clamp(whole - open.now, far) * rule.den + ticks
  local stop = start + cost * rule.per
  if born ~= open.born or stop > open.tail then return false end
  if stop == open.tail then
    open.tail = start
    if holes[#holes] == start then
      table.remove(holes)
      open.tail = table.remove(holes)
    end
    if reset_after(open) == 0 then open.tail, open.born, open.holes = 0, open.now, {} end
    return true
  end
  if clip(rule, start, 0) + rule.per > stop then return false end
  local at = #holes + 1
  for i = 1, #holes, 2 do
    if holes[i] >= start then
      at = i
      break
    end
  end
  if (at > 1 and holes[at - 1] > start) or (holes[at] and holes[at] < stop) then return false end
  insert_hole(holes, at, start, stop)
  if holes[at + 2] == stop then
    table.remove(holes, at + 1)
    table.remove(holes, at + 1)
  end
  if at > 1 and holes[at - 1] == start then
    table.remove(holes, at - 1)
    table.remove(holes, at - 1)
  end
  drop_shortest_hole_above_bound(holes)
  return true
end

-- remaining, next, reset_after
function token_bucket.level(open)
  local rule = open.rule
  local full = rule.burst * rule.per
  local function permits(s, e)
    local span = math.min(e, full) - clip(rule, s, 0)
    return span > 0 and math.floor(span / rule.per) or 0
  end
  local remaining = permits(open.tail, full)
  for i = 1, #open.holes, 2 do remaining = remaining + permits(open.holes[i], open.holes[i + 1]) end
  local next = token_bucket.earliest(open, 0, 1)
  return remaining, next, reset_after(open)
end

-- the value to keep and for how many µs it matters; nil when it equals an absent one
function token_bucket.close(open)
  local ttl = reset_after(open)
  if ttl <= 0 then return nil end
  local rule, holes = open.rule, open.holes
  local whole, ticks = absolute(open, open.tail)
  local raw = struct.pack(
    HEAD, VERSION, token_bucket.kind, rule.per, rule.den, rule.burst, whole, ticks, open.born)
  if #holes == 0 then return raw, ttl end
  local parts = { raw }
  for i = 1, #holes, 2 do
    parts[#parts + 1] = struct.pack(HOLE, open.tail - holes[i], open.tail - holes[i + 1])
  end
  return table.concat(parts), ttl
end

