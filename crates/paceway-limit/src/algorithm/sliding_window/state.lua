-- Sliding window log with reservations: its state, and the questions that the rule asks about it. Twin of
-- sliding_window/state.rs: same names, same order, same arithmetic. The branch that begins here ends in
-- stored.lua.
--
-- An open state is a table; an instant is µs of the store's clock, permits are numbered from 0 on:
--   rule, now, fresh        as in the twin
--   born floor base span most closed_count closed_span
--   count                   entries of the ring
--   last, total             instant of the last entry, permits up to it
--   ahead                   { at1, permits1, at2, permits2, ... }
--   others                  nil, or { past_count, past_span, count1, span1, last1, 0, count2, ... }: the law of the
--                           permits that are no longer kept, then the other rules in use
--   laws                    nil, or { { count, span }, ... }
--   gone_at, gone           of a state that is past: its last permit, and how many there were
--   skip                    bytes of the stored value ahead of the state: those of its gate
--
-- A stored state: HEAD (version, kind, born, floor, base, last, total, span, most, closed_count, closed_span,
-- lives until, first slot, count, entries ahead, slots of `others`), then slots of 16 bytes: some that are
-- past, the ring from `first` on (instant, permits up to it), the entries ahead (instant, permits), and
-- `others`. A long ring is read and written in pieces: a decision costs the same whatever its count.

if part == 83 then
local sliding_window = { kind = 83, lease = false }

local HEAD = '<BBi8i8i8i8i8i8i8i8i8i8i4i4I2I2'
local MAX_OTHERS, FAR = 3, EXACT / 8

function sliding_window.rule(entries, from)
  local count, span, grain, next = unpack_from('<ddd', entries, from)
  return { count = count, span = span, grain = grain }, next
end

function sliding_window.same(a, b)
  return a.count == b.count and a.span == b.span and a.grain == b.grain
end

sliding_window.names = 'aux'
function sliding_window.ramp(rule) return rule.span, rule.count, rule.count end

local function grained(rule, instant)
  if rule.grain == 1 then return instant end
  return ceil_div(instant, rule.grain) * rule.grain
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
    if slot < open.from then from = math.max(open.first, slot - CHUNK + 1) end
    local start = open.skip + HEAD_SIZE + SIZE * from
    open.chunk = redis.call('GETRANGE', open.key, start, start + CHUNK * SIZE - 1)
    open.from, open.to = from, from + math.floor(#open.chunk / SIZE)
    -- In a value that was cut short, the missing entries count as far away, which refuses requests.
    if slot >= open.to then return EXACT, EXACT end
  end
  local at, cum = struct.unpack(ENTRY, open.chunk, SIZE * (slot - open.from) + 1)
  return at, cum
end

-- The first entry for which `holds` is true, as it is for all later ones. The search begins at `start`: the
-- entry is most often near it.
local function lower_bound(open, start, holds)
  local low, step = start, 1
  while low < open.count and not holds(entry(open, low)) do
    local high = low + step
    if high >= open.count or holds(entry(open, high)) then
      if high > open.count then high = open.count end
      low = low + 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        if holds(entry(open, middle)) then high = middle else low = middle + 1 end
      end
      return low
    end
    low, step = high, 2 * step
  end
  return low
end

local last_of_all

-- Whether the state equals an absent one: all windows with its permits are past.
local function is_past(open)
  return last_of_all(open) + open.span <= open.now
end

local function find_last(open)
  open.last, open.total = open.floor, open.base
  if open.count > 0 then open.last, open.total = entry(open, open.count - 1) end
end

function last_of_all(open)
  return open.ahead[#open.ahead - 1] or open.last
end

-- === more than one rule

-- The functions for several rules are made when a call needs them, which is while rules change: `beside`,
-- `tells`, `used`, `forgotten`, `room`.
local rare
local function make_rare()
  -- How many permits a law of `count` in `own` µs allows in a window of `span` µs, or `least` if that is
  -- more.
  local function allows(count, own, span, least)
    local windows = ceil_div(span, own)
    if windows > math.floor(FAR / count) then return FAR end
    return math.max(least, windows * count)
  end

  -- Adds to `laws` the laws that grants under `rule` keep because of another rule.
  local function beside(laws, rule, count, span)
    if span <= rule.span then return end
    local whole = math.floor(span / rule.span) * rule.span
    local in_whole = allows(rule.count, rule.span, whole, count)
    if in_whole ~= rule.count or whole ~= rule.span then laws[#laws + 1] = { count = in_whole, span = whole } end
    if whole < span then
      laws[#laws + 1] = { count = allows(rule.count, rule.span, span, count), span = span }
    end
  end

  -- Whether the past permits are still remembered for a rule with a longer window.
  local function tells(open)
    return last_of_all(open) + open.span + KNOWN_PAST > open.now
  end

  -- Count and span of the law that the permits which are no longer kept obey, for a rule of `span`.
  local function past_of(open, span)
    local others = open.others
    if span <= open.span then
      if others then return others[1], others[2] end
      return open.closed_count, open.closed_span
    end
    local count, least = open.closed_count, open.closed_span
    for i = 3, others and #others or 0, 4 do
      count, least = math.max(count, others[i]), math.min(least, others[i + 1])
    end
    return count, least
  end

  -- Notes a grant under the rule, and drops the rules whose grants no longer count.
  local function used(open)
    local rule, now = open.rule, open.now
    local own_count, own_span = rule.count, rule.span
    local is_closed = open.closed_count == own_count and open.closed_span == own_span
    local before, after = open.others or { 0, 0 }, nil
    if open.closed_count > 0 and not is_closed then
      after = { past_of(open, own_span) }
      after[3], after[4], after[5], after[6] = open.closed_count, open.closed_span, last_of_all(open), 0
    else
      after = { before[1], before[2] }
    end
    for i = 3, #before, 4 do
      for j = i, i + 3 do after[#after + 1] = before[j] end
    end
    local longest, kept = math.max(open.span, own_span), { after[1], after[2] }
    local span, most = own_span, own_count
    for i = 3, #after, 4 do
      local count, other, last = after[i], after[i + 1], after[i + 2]
      local is_own = count == own_count and other == own_span
      if not is_own and last + longest > now and #kept < 2 + 4 * MAX_OTHERS then
        for j = i, i + 3 do kept[#kept + 1] = after[j] end
        span, most = math.max(span, other), math.max(most, count)
      end
    end
    open.closed_count, open.closed_span, open.span, open.most = own_count, own_span, span, most
    open.others = #kept > 2 and kept or nil
  end

  -- Until when `law` delays the permit numbered `number` because of a permit that is no longer kept.
  local function forgotten(open, law, number)
    local count, span = past_of(open, law.span)
    local before = number - allows(count, span, law.span, law.count)
    if before < 0 then return 0 end
    return open.floor - (ceil_div(open.base - before, count) - 1) * span + law.span
  end

  -- The number of the first permit that `law` delays at an instant which is its span after `x`.
  local function room(open, law, x)
    local count, span = past_of(open, law.span)
    local later = math.min(ceil_div(open.floor - x, span), ceil_div(open.base, count))
    local first = math.max(open.base - later * count, 0)
    return math.min(open.base + law.count, first + allows(count, span, law.span, law.count))
  end

  rare = {
    beside = beside, tells = tells, used = used, forgotten = forgotten, room = room,
  }
  return rare
end

-- The instant of the permit numbered `j`, which is in the ring.
local function instant(open, j)
  local start = 0
  local hint = open.hint
  if hint < open.count and hint > 0 then
    local _, before = entry(open, hint - 1)
    if before <= j then start = hint end
  end
  open.hint = lower_bound(open, start, function(_, cum) return cum > j end)
  return (entry(open, open.hint))
end

-- The number of the first permit that is later than `x`.
local function first_after(open, x)
  local i = lower_bound(open, 0, function(at) return at > x end)
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

-- The number of the first permit that `law` delays at an instant which is its span after `x`.
local function room_under(open, law, x)
  if open.base == 0 or open.floor <= x then return first_after(open, x) + law.count end
  return (rare or make_rare()).room(open, law, x)
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
  find_last(open)
  return at, cum - open.total
end

local function push(open, at, permits)
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

-- Opens the end of the ring, the last entry first, as far as entries may be kept ahead.
local function pop_while(open, is_open)
  local popped = {}
  while #popped + #open.ahead < 2 * MAX_HOLES and open.count > 0 and is_open(open.last) do
    local at, permits = pop(open)
    popped[#popped + 1] = at
    popped[#popped + 1] = permits
  end
  return popped
end

local function prune(open, most)
  local past = lower_bound(open, 0, function(at) return at + open.span > open.now end)
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
  if open.count == 0 then find_last(open) end
end

-- === what lies ahead

-- Moves the entries ahead up to `at` into the ring, and the first ones above MAX_HOLES.
local function absorb(open, at)
  local ahead = open.ahead
  local n, until_ = #ahead, 0
  while until_ < n and (ahead[until_ + 1] <= at or n - until_ > 2 * MAX_HOLES) do
    push(open, ahead[until_ + 1], ahead[until_ + 2])
    until_ = until_ + 2
  end
  if until_ == 0 then return end
  local rest = {}
  for i = until_ + 1, n do rest[#rest + 1] = ahead[i] end
  open.ahead = rest
end

local function insert_ahead(open, at, permits)
  local ahead = open.ahead
  local i = 1
  while i <= #ahead and ahead[i] < at do i = i + 2 end
  if ahead[i] == at then
    ahead[i + 1] = ahead[i + 1] + permits
  else
    table.insert(ahead, i, permits)
    table.insert(ahead, i, at)
  end
end

-- A walk finds permits of growing numbers, in the ring and ahead of it.
local function new_walk(open) return { i = 1, number = open.total } end

local function walk_to(open, walk, j)
  if j < open.total then return instant(open, j) end
  local ahead = open.ahead
  while walk.i <= #ahead do
    if walk.number + ahead[walk.i + 1] > j then return ahead[walk.i] end
    walk.number, walk.i = walk.number + ahead[walk.i + 1], walk.i + 2
  end
  return last_of_all(open)
end

-- The first instant at which `law` allows the permit numbered `number`; the numbers of successive calls do
-- not fall.
local function free(open, walk, law, number)
  local before = number - law.count
  if before < open.base then
    if open.base == 0 or open.floor + law.span <= open.now then return 0 end
    return (rare or make_rare()).forgotten(open, law, number)
  end
  return walk_to(open, walk, before) + law.span
end
