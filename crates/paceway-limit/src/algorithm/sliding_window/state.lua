-- Sliding window log with reservations: its state, and the questions that the rule asks about it. Twin of
-- sliding_window/state.rs: same names, same order, same arithmetic. stored.lua reads it from its key and writes it.
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

local common, laws = require 'common', require 'sliding_window.laws'
local M = {}

local redis, floor, max, insert, unpack_from = redis, math.floor, math.max, table.insert, struct.unpack
local EXACT, MAX_HOLES = common.EXACT, common.MAX_HOLES
local last_of_all = laws.last_of_all

-- The stored state: the bytes of its head, the form and the bytes of a slot, and the slots that are read at once.
local HEAD_SIZE, ENTRY, SIZE, CHUNK = 94, '<i8i8', 16, 32
M.HEAD_SIZE, M.ENTRY, M.SIZE, M.CHUNK, M.KNOWN_PAST = HEAD_SIZE, ENTRY, SIZE, CHUNK, 5000000

-- The instant by which a rule counts `instant`.
function M.grained(rule, instant)
  if rule.grain == 1 then return instant end
  return common.ceil_div(instant, rule.grain) * rule.grain
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

-- Whether the state equals an absent one: all windows with its permits are past.
function M.is_past(open)
  return last_of_all(open) + open.span <= open.now
end

function M.find_last(open)
  open.last, open.total = open.floor, open.base
  if open.count > 0 then open.last, open.total = entry(open, open.count - 1) end
end

-- The instant of the permit numbered `j`, which is in the ring.
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

-- The number of the first permit that is later than `x`.
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

-- The number of the first permit that `law` delays at an instant which is its span after `x`.
function M.room_under(open, law, x)
  if open.base == 0 or open.floor <= x then return M.first_after(open, x) + law.count end
  return laws.room(open, law, x)
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

-- Opens the end of the ring, the last entry first, as far as entries may be kept ahead.
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

-- Moves the entries ahead up to `at` into the ring, and the first ones above MAX_HOLES.
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

-- A walk finds permits of growing numbers, in the ring and ahead of it.
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

-- The first instant at which `law` allows the permit numbered `number`; the numbers of successive calls do
-- not fall.
function M.free(open, walk, law, number)
  local before = number - law.count
  if before < open.base then
    if open.base == 0 or open.floor + law.span <= open.now then return 0 end
    return laws.forgotten(open, law, number)
  end
  return walk_to(open, walk, before) + law.span
end

return M
