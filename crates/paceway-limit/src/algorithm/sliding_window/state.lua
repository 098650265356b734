-- Sliding window log with reservations: its open state, and the questions that the rule asks about it. Twin of
-- sliding_window/state.rs, whose fields it has, and further ones:
--   count        entries of the ring
--   last, total  instant of the last entry, permits up to it
--   ahead        { at1, permits1, at2, permits2, ... }
--   others       nil, or { past_count, past_span, count1, span1, last1, 0, count2, ... }: the law of the permits that are no longer
--                kept, then the other rules in use
--   laws         { rule, { count, span }, ... }: the rule, and what it keeps because of the other rules
--   gone_at, gone  of a state that is past: its last permit, and how many there were
--   skip         bytes of the stored value ahead of the state: those of its gate

local common = require 'common'
local M = {}

local redis, floor, max, min, insert, unpack_from = redis, math.floor, math.max, math.min, table.insert, struct.unpack
local EXACT, MAX_HOLES, ceil_div = common.EXACT, common.MAX_HOLES, common.ceil_div
local MAX_OTHERS, KNOWN_PAST = 3, 5000000

-- The stored state: the bytes of its head, the form and the bytes of a slot, and the slots that are read at once.
local HEAD_SIZE, ENTRY, SIZE, CHUNK = 94, '<i8i8', 16, 32
M.HEAD_SIZE, M.ENTRY, M.SIZE, M.CHUNK = HEAD_SIZE, ENTRY, SIZE, CHUNK
-- The most numbers that a state keeps about other rules.
M.MAX_NUMBERS = 2 + 4 * MAX_OTHERS

function M.grained(rule, instant)
  if rule.grain == 1 then return instant end
  return ceil_div(instant, rule.grain) * rule.grain
end

local function last_of_all(open) return open.ahead[#open.ahead - 1] or open.last end
M.last_of_all = last_of_all

function M.number(open)
  local number = open.total
  for i = 2, #open.ahead, 2 do number = number + open.ahead[i] end
  return number
end

-- === more than one rule, while rules change

local function allows(count, own, span, least)
  local windows = ceil_div(span, own)
  if windows > floor(EXACT / 8 / count) then return EXACT / 8 end
  return max(least, windows * count)
end

local function add_beside(laws, rule, count, span)
  if span <= rule.span then return end
  local whole = floor(span / rule.span) * rule.span
  local in_whole = allows(rule.count, rule.span, whole, count)
  if in_whole ~= rule.count or whole ~= rule.span then laws[#laws + 1] = { count = in_whole, span = whole } end
  if whole < span then
    laws[#laws + 1] = { count = allows(rule.count, rule.span, span, count), span = span }
  end
end

function M.tells(open) return last_of_all(open) + open.span + KNOWN_PAST > open.now end

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

function M.use_laws(open)
  local rule, now, others = open.rule, open.now, open.others
  local found = { rule }
  if last_of_all(open) + open.closed_span > now then add_beside(found, rule, open.closed_count, open.closed_span) end
  for i = 3, others and #others or 0, 4 do
    local count, span, last = others[i], others[i + 1], others[i + 2]
    if last + span > now then add_beside(found, rule, count, span) end
  end
  open.laws = found
end

function M.use(open)
  local rule, now = open.rule, open.now
  local own_count, own_span = rule.count, rule.span
  local is_closed = open.closed_count == own_count and open.closed_span == own_span
  local before = open.others or { 0, 0 }
  local after = { before[1], before[2] }
  if open.closed_count > 0 and not is_closed then
    after[1], after[2] = past_of(open, own_span)
    after[3], after[4], after[5], after[6] = open.closed_count, open.closed_span, last_of_all(open), 0
  end
  for i = 3, #before do after[#after + 1] = before[i] end
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

local function forgotten(open, law, number)
  local count, span = past_of(open, law.span)
  local before = number - allows(count, span, law.span, law.count)
  if before < 0 then return 0 end
  return open.floor - (ceil_div(open.base - before, count) - 1) * span + law.span
end

local function room(open, law, x)
  local count, span = past_of(open, law.span)
  local later = min(ceil_div(open.floor - x, span), ceil_div(open.base, count))
  local first = max(open.base - later * count, 0)
  return min(open.base + law.count, first + allows(count, span, law.span, law.count))
end

-- === the ring

-- The entry `i` (from 0) of the ring: its instant, and the permits up to it.
local function entry(open, i)
  if i >= open.written then
    local at = 2 * (i - open.written)
    return open.new[at + 1], open.new[at + 2]
  end
  local slot = open.first + i
  if slot < open.from or slot >= open.to then
    local from = slot
    if slot < open.from then from = max(open.first, slot - CHUNK + 1) end
    local start = open.skip + HEAD_SIZE + SIZE * from
    open.chunk = redis.call('GETRANGE', open.key, start, start + CHUNK * SIZE - 1)
    open.from, open.to = from, from + floor(#open.chunk / SIZE)
    -- In a value that was cut short, the missing entries count as far away, which refuses requests.
    if slot >= open.to then return EXACT, EXACT end
  end
  local at, cum = unpack_from(ENTRY, open.chunk, SIZE * (slot - open.from) + 1)
  return at, cum
end

-- The first entry whose instant, or whose permits up to it where `by_number`, are more than `bound`, as those of all later ones
-- are. The search begins at `start`: the entry is most often near it.
local function first_above(open, start, by_number, bound)
  local function is_above(i)
    local at, cum = entry(open, i)
    return (by_number and cum or at) > bound
  end
  local low, step = start, 1
  while low < open.count and not is_above(low) do
    local high = low + step
    if high >= open.count or is_above(high) then
      if high > open.count then high = open.count end
      low = low + 1
      while low < high do
        local middle = floor((low + high) / 2)
        if is_above(middle) then high = middle else low = middle + 1 end
      end
      return low
    end
    low, step = high, 2 * step
  end
  return low
end

function M.is_past(open) return last_of_all(open) + open.span <= open.now end

function M.find_last(open)
  open.last, open.total = open.floor, open.base
  if open.count > 0 then open.last, open.total = entry(open, open.count - 1) end
end

local function instant(open, j)
  local start = 0
  local hint = open.hint
  if hint < open.count and hint > 0 then
    local _, before = entry(open, hint - 1)
    if before <= j then start = hint end
  end
  open.hint = first_above(open, start, true, j)
  return (entry(open, open.hint))
end

function M.first_after(open, x)
  local i = first_above(open, 0, false, x)
  local first = open.base
  if i > 0 then
    local _, cum = entry(open, i - 1)
    first = cum
  end
  if first < open.total then return first end
  local ahead = open.ahead
  for a = 1, #ahead, 2 do
    if ahead[a] > x then break end
    first = first + ahead[a + 1]
  end
  return first
end

function M.room_under(open, law, x)
  if open.base == 0 or open.floor <= x then return M.first_after(open, x) + law.count end
  return room(open, law, x)
end

local function pop(open)
  local at, cum = entry(open, open.count - 1)
  open.count = open.count - 1
  if open.count < open.written then
    open.written, open.new = open.count, {}
  else
    open.new[#open.new] = nil
    open.new[#open.new] = nil
  end
  M.find_last(open)
  return at, cum - open.total
end

function M.push(open, at, permits)
  local total = open.total + permits
  if open.count > 0 and open.last == at then
    if open.count > open.written then
      open.new[#open.new], open.total = total, total
      return
    end
    pop(open)
  end
  open.new[#open.new + 1] = at
  open.new[#open.new + 1] = total
  open.count, open.last, open.total = open.count + 1, at, total
end

function M.pop_while(open, is_open)
  local popped = {}
  while #popped + #open.ahead < 2 * MAX_HOLES and open.count > 0 and is_open(open.last) do
    local at, permits = pop(open)
    popped[#popped + 1] = at
    popped[#popped + 1] = permits
  end
  return popped
end

function M.prune(open, most)
  local past = first_above(open, 0, false, open.now - open.span)
  if open.count - most > past then past = open.count - most end
  if past == 0 then return end
  open.floor, open.base = entry(open, past - 1)
  open.first, open.count, open.hint = open.first + past, open.count - past, 0
  open.written = open.written - past
  if open.written < 0 then
    local kept = {}
    for i = 1 - 2 * open.written, #open.new do kept[#kept + 1] = open.new[i] end
    open.new, open.first, open.written = kept, open.first + open.written, 0
  end
  if open.count == 0 then M.find_last(open) end
end

-- === what lies ahead

function M.absorb(open, at)
  local ahead = open.ahead
  local n, until_ = #ahead, 0
  while until_ < n and (ahead[until_ + 1] <= at or n - until_ > 2 * MAX_HOLES) do
    M.push(open, ahead[until_ + 1], ahead[until_ + 2])
    until_ = until_ + 2
  end
  if until_ == 0 then return end
  local rest = {}
  for i = until_ + 1, n do rest[#rest + 1] = ahead[i] end
  open.ahead = rest
end

function M.insert_ahead(open, at, permits)
  local ahead = open.ahead
  local i = 1
  while i <= #ahead and ahead[i] < at do i = i + 2 end
  if ahead[i] == at then
    ahead[i + 1] = ahead[i + 1] + permits
  else
    insert(ahead, i, permits)
    insert(ahead, i, at)
  end
end

function M.open_end(open, is_open)
  local popped = M.pop_while(open, is_open)
  for i = 1, #popped, 2 do M.insert_ahead(open, popped[i], popped[i + 1]) end
end

function M.new_walk(open) return { i = 1, number = open.total } end

local function walk_to(open, walk, j)
  if j < open.total then return instant(open, j) end
  local ahead = open.ahead
  while walk.i <= #ahead do
    if walk.number + ahead[walk.i + 1] > j then return ahead[walk.i] end
    walk.number, walk.i = walk.number + ahead[walk.i + 1], walk.i + 2
  end
  return last_of_all(open)
end

function M.free(open, walk, law, number)
  local before = number - law.count
  if before < open.base then
    if open.base == 0 or open.floor + law.span <= open.now then return 0 end
    return forgotten(open, law, number)
  end
  return walk_to(open, walk, before) + law.span
end

return M
