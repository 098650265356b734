-- Sliding window log with reservations. Twin of sliding_window.rs, which explains the rule: same names,
-- same order, same arithmetic.
--
-- An open state is a table; an instant is µs of the store's clock, permits are numbered from 0 on:
--   rule, now, fresh        as in the twin
--   born floor base span most closed_count closed_span
--   count                   entries of the ring
--   last, total             instant of the last entry, permits up to it
--   ahead                   { at1, permits1, at2, permits2, ... }
--   others                  nil, or { past_count, past_span, count1, span1, last1, 0, count2, ... }: what the permits
--                           that are not kept obey, then the other rules in use
--   laws                    nil, or { { count, span }, ... }
--   gone_at, gone           of a state that is past: its last permit, and how many there were
--
-- A stored state: HEAD (version, kind, born, floor, base, last, total, span, most, closed_count, closed_span,
-- lives until, first slot, count, entries ahead, slots of `others`), then slots of 16 bytes: some that are past, the
-- ring from `first` on (instant, permits up to it), behind it what lies ahead (instant, permits), and `others`. A long
-- ring is read and written in pieces: a decision costs the same whatever its count.
make[83] = function()
local sliding_window = { kind = 83, args = 3 }

local HEAD, HEAD_SIZE, ENTRY, SIZE = '<BBi8i8i8i8i8i8i8i8i8i8i4i4I2I2', 94, '<i8i8', 16
-- Slots read at once; a state that is not longer is read and written whole.
local CHUNK, SMALL = 32, 24
local MAX_STAMPS, MAX_OTHERS, KNOWN_PAST, FAR = 10000, 3, 5000000, EXACT / 8

function sliding_window.rule(args, i)
  return { count = tonumber(args[i]), span = tonumber(args[i + 1]), grain = tonumber(args[i + 2]) }
end

function sliding_window.same(a, b)
  return a.count == b.count and a.span == b.span and a.grain == b.grain
end

local function grained(rule, instant)
  if rule.grain == 1 then return instant end
  return ceil_div(instant, rule.grain) * rule.grain
end

-- === the ring

-- the entry `i` (from 0) of the ring: instant, permits up to it
local function entry(open, i)
  if i >= open.written then
    local at = 2 * (i - open.written)
    return open.new[at + 1], open.new[at + 2]
  end
  local slot = open.first + i
  if slot < open.from or slot >= open.to then
    local from = slot
    if slot < open.from then from = math.max(open.first, slot - CHUNK + 1) end
    local start = HEAD_SIZE + SIZE * from
    open.chunk = redis.call('GETRANGE', open.key, start, start + CHUNK * SIZE - 1)
    open.from, open.to = from, from + math.floor(#open.chunk / SIZE)
    -- A value that was cut short: what is missing counts as far away, which refuses.
    if slot >= open.to then return EXACT, EXACT end
  end
  local at, cum = struct.unpack(ENTRY, open.chunk, SIZE * (slot - open.from) + 1)
  return at, cum
end

-- the first entry for which `holds` is true of all from it on, searched from the start on: what is asked
-- about is most often near it
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

-- whether it equals an absent one
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

-- Made when a call needs them, which is while rules change: `beside`, `tells`, `used`, `forgotten`, `room`.
local rare
local function make_rare()
  -- how many permits a law of `count` in `own` µs allows in a window of `span` µs, or `least` if that is more
  local function allows(count, own, span, least)
    local windows = ceil_div(span, own)
    if windows > math.floor(FAR / count) then return FAR end
    return math.max(least, windows * count)
  end

  -- adds to `laws` what grants under `rule` have to keep beside it because of another one
  local function beside(laws, rule, count, span)
    if span <= rule.span then return end
    local whole = math.floor(span / rule.span) * rule.span
    local in_whole = allows(rule.count, rule.span, whole, count)
    if in_whole ~= rule.count or whole ~= rule.span then laws[#laws + 1] = { count = in_whole, span = whole } end
    if whole < span then
      laws[#laws + 1] = { count = allows(rule.count, rule.span, span, count), span = span }
    end
  end

  -- whether what is past is still known to whom it concerns
  local function tells(open)
    return last_of_all(open) + open.span + KNOWN_PAST > open.now
  end

  -- count and span of what the permits that are not kept obey, for a rule of `span`
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

  -- a grant under the rule
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

  -- until when `law` keeps the permit numbered `number` out because of one that is not kept
  local function forgotten(open, law, number)
    local count, span = past_of(open, law.span)
    local before = number - allows(count, span, law.span, law.count)
    if before < 0 then return 0 end
    return open.floor - (ceil_div(open.base - before, count) - 1) * span + law.span
  end

  -- the number of the first permit that `law` keeps out at an instant that is its span behind `x`
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

-- instant of the permit numbered `j`, one of the ring
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

-- number of the first permit that is later than `x`
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

-- the number of the first permit that `law` keeps out at an instant that is its span behind `x`
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

-- opens the end of the ring, the last first, up to what may lie ahead
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

-- closes the ring behind what lies ahead up to `at`, and behind what is too much
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

-- finds permits of growing numbers, also among those ahead
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

-- the first instant at which `law` allows the permit numbered `number`, which is not less than it was before
local function free(open, walk, law, number)
  local before = number - law.count
  if before < open.base then
    if open.base == 0 or open.floor + law.span <= open.now then return 0 end
    return (rare or make_rare()).forgotten(open, law, number)
  end
  return walk_to(open, walk, before) + law.span
end

-- === the rule

-- the last of those ahead (from `i` on) that `cost` permits at `at`, numbered from `number` on, would make one
-- too many under `law`
local function last_broken(open, law, i, at, number, cost)
  local ahead = open.ahead
  local broken, stop, walk = nil, number, new_walk(open)
  while i <= #ahead and ahead[i] < at + law.span do
    stop = stop + ahead[i + 1]
    local last = stop + cost - 1
    if last - law.count >= number or free(open, walk, law, last) > ahead[i] then broken = ahead[i] end
    i = i + 2
  end
  return broken
end

function sliding_window.earliest(open, from, cost)
  local rule = open.rule
  local at = grained(rule, open.now + from)
  if open.fresh then return from, at end
  local first = from == 0 and cost == 1
  -- Asked once to decide, once to take, once for the level.
  if first and open.first_at then
    at = open.first_at
  else
    if at < open.last then at = open.last end
    local ahead, laws = open.ahead, open.laws
    local i, number, walk, walks = 1, open.total, new_walk(open), laws and {}
    while true do
      while i <= #ahead and ahead[i] <= at do
        number, i = number + ahead[i + 1], i + 2
      end
      local full = free(open, walk, rule, number + cost - 1)
      for l = 1, laws and #laws or 0 do
        walks[l] = walks[l] or new_walk(open)
        full = math.max(full, free(open, walks[l], laws[l], number + cost - 1))
      end
      if full > at then
        at = full
      else
        local broken = i <= #ahead and last_broken(open, rule, i, at, number, cost)
        for l = 1, laws and i <= #ahead and #laws or 0 do
          local later = last_broken(open, laws[l], i, at, number, cost)
          if later and (not broken or later > broken) then broken = later end
        end
        if not broken then break end
        at = broken
      end
    end
    if first then open.first_at = at end
  end
  return math.max(from, at - rule.grain + 1 - open.now), at
end

function sliding_window.take(open, at, cost)
  local rule = open.rule
  if open.fresh then
    open.fresh, open.born = false, open.now
    open.floor, open.base, open.span, open.most = open.gone_at or 0, open.gone or 0, rule.span, rule.count
    open.closed_count, open.closed_span, open.others, open.laws = rule.count, rule.span, nil, nil
    open.first, open.count, open.written, open.new, open.hint = 0, 0, 0, {}, 0
    open.ahead, open.chunk, open.from, open.to, open.whole = {}, '', 0, 0, true
    open.first_at = nil
    find_last(open)
  end
  local _, first = sliding_window.earliest(open, 0, 1)
  local closed = first >= at
  open.first_at = nil
  if open.others or open.closed_count ~= rule.count or open.closed_span ~= rule.span then
    (rare or make_rare()).used(open)
  end
  absorb(open, closed and at or open.now)
  if closed then
    push(open, at, cost)
  else
    insert_ahead(open, at, cost)
    absorb(open, open.now)
  end
  prune(open, math.min(open.most, MAX_STAMPS) + 2 + MAX_HOLES)
  return at, 0, open.born, 0
end

function sliding_window.refund(open, at, _, born, _, cost)
  if open.fresh or born ~= open.born then return false end
  local ahead, now, span = open.ahead, open.now, math.max(open.rule.span, open.span)
  open.first_at = nil
  for i = 1, #ahead, 2 do
    if ahead[i] == at and ahead[i + 1] >= cost then
      ahead[i + 1] = ahead[i + 1] - cost
      if ahead[i + 1] == 0 then
        table.remove(ahead, i)
        table.remove(ahead, i)
      end
      local popped = pop_while(open, function(last) return last > now and last > at - span end)
      for j = 1, #popped, 2 do insert_ahead(open, popped[j], popped[j + 1]) end
      open.fresh = is_past(open)
      return true
    end
  end
  local popped = pop_while(open, function(last) return last >= at or (last > now and last > at - span) end)
  local found = false
  for i = 1, #popped, 2 do
    if popped[i] == at and popped[i + 1] >= cost then
      popped[i + 1], found = popped[i + 1] - cost, true
      break
    end
  end
  local rest = {}
  for i = #popped - 1, 1, -2 do
    if popped[i + 1] > 0 then
      if not found or popped[i] <= now then
        push(open, popped[i], popped[i + 1])
      else
        rest[#rest + 1] = popped[i]
        rest[#rest + 1] = popped[i + 1]
      end
    end
  end
  if #rest > 0 then
    for i = 1, #ahead do rest[#rest + 1] = ahead[i] end
    open.ahead = rest
    absorb(open, now)
  end
  open.fresh = is_past(open)
  return found
end

local function remaining(open)
  local rule = open.rule
  if open.fresh then return rule.count end
  local at = grained(rule, open.now)
  if open.last > at then return 0 end
  local ahead, laws = open.ahead, open.laws
  local start, come = open.total, 1
  while come <= #ahead and ahead[come] <= at do
    start, come = start + ahead[come + 1], come + 2
  end
  local least = nil
  for l = 0, laws and #laws or 0 do
    local law = l == 0 and rule or laws[l]
    local stop, room, i = start, room_under(open, law, at - law.span) - start, come
    while i <= #ahead and ahead[i] < at + law.span do
      stop = stop + ahead[i + 1]
      room = math.min(room, room_under(open, law, ahead[i] - law.span) - stop)
      i = i + 2
    end
    if not least or room < least then least = room end
  end
  return math.max(least, 0)
end

-- remaining, next, reset_after
function sliding_window.level(open)
  local reset_after = 0
  if not open.fresh then reset_after = math.max(last_of_all(open) + open.rule.span - open.now, 0) end
  local next = sliding_window.earliest(open, 0, 1)
  return remaining(open), next, reset_after
end

-- === the key

-- as many as may be, all at the last instant that can have been promised before the loss
local function use_up(open, horizon)
  local at, count = grained(open.rule, lost + horizon), open.rule.count
  open.fresh, open.born, open.floor, open.base, open.most = false, open.now, 0, 0, count
  open.span, open.closed_count, open.closed_span = open.rule.span, count, open.rule.span
  open.first, open.count, open.written, open.new = 0, 1, 0, { at, count }
  open.chunk, open.from, open.to, open.whole, open.ahead = '', 0, 0, true, {}
  open.others, open.laws = nil, nil
  find_last(open)
  open.fresh = is_past(open)
  if open.fresh and (rare or make_rare()).tells(open) then open.gone_at, open.gone = at, count end
  return open
end

-- nil for a value that this version did not write
function sliding_window.load(key, now, rule, horizon)
  local raw = ask('GETRANGE', key, 0, HEAD_SIZE + CHUNK * SIZE - 1)
  if not raw then return nil end
  local open = { rule = rule, horizon = horizon, now = now, key = key, fresh = true, ahead = {}, hint = 0 }
  if raw == '' then return is_lost() and use_up(open, horizon) or open end
  if #raw < HEAD_SIZE then return nil end
  local version, kind, born, floor, base, last, total, span, most, closed_count, closed_span, lives, first, count,
    ahead, others = struct.unpack(HEAD, raw)
  if version ~= VERSION or kind ~= sliding_window.kind then return nil end
  if first < 0 or count < 0 or ahead > MAX_HOLES or span < 1 or base < 0 or total < base then return nil end
  if closed_count < 1 or closed_span < 1 or others > 1 + 2 * MAX_OTHERS then return nil end
  local slots = first + count + ahead + others
  if slots <= CHUNK and #raw < HEAD_SIZE + slots * SIZE then return nil end
  open.exists = true
  if is_lost(born) then return use_up(open, horizon) end
  open.chunk, open.from, open.to = string.sub(raw, HEAD_SIZE + 1), 0, math.floor((#raw - HEAD_SIZE) / SIZE)
  if ahead + others > 0 then
    local stored = open.chunk
    local from = (first + count) * SIZE
    if slots > CHUNK then
      stored = redis.call('GETRANGE', key, HEAD_SIZE + from, HEAD_SIZE + slots * SIZE - 1)
      from = 0
    end
    if #stored < from + (ahead + others) * SIZE then return nil end
    for i = 0, ahead - 1 do
      open.ahead[2 * i + 1], open.ahead[2 * i + 2] = struct.unpack(ENTRY, stored, from + SIZE * i + 1)
    end
    if others > 0 then
      open.others = {}
      for i = 0, others - 1 do
        local a, b = struct.unpack(ENTRY, stored, from + SIZE * (ahead + i) + 1)
        -- An instant alone has nothing beside it.
        if a < 1 or b < (i > 0 and i % 2 == 0 and 0 or 1) then return nil end
        open.others[2 * i + 1], open.others[2 * i + 2] = a, b
      end
    end
  end
  open.last, open.span, open.total = last, span, total
  open.closed_count, open.closed_span = closed_count, closed_span
  local is_same = closed_count == rule.count and closed_span == rule.span
  local gone = is_past(open)
  if gone then
    local knows = last_of_all(open) + open.span + KNOWN_PAST > now
    if knows then
      local gone_number = total
      for i = 2, #open.ahead, 2 do gone_number = gone_number + open.ahead[i] end
      open.gone_at, open.gone = last_of_all(open), gone_number
    end
    if not knows or (is_same and others == 0) or open.gone_at + rule.span <= now then
      open.ahead, open.others = {}, nil
      return open
    end
  end
  open.fresh, open.born, open.floor, open.base = false, born, floor, base
  open.span, open.most = span, most
  open.lives, open.first, open.count, open.written, open.new = lives, first, count, count, {}
  if gone then
    -- Past for the rules that know it, and not for a longer one.
    open.floor, open.base, open.ahead = open.gone_at, open.gone, {}
    open.first, open.count, open.written = first + count, 0, 0
    find_last(open)
    return open
  end
  if not is_same then
    local popped = pop_while(open, function(at) return at > now end)
    for i = 1, #popped, 2 do insert_ahead(open, popped[i], popped[i + 1]) end
  end
  if not is_same or others > 0 then
    open.laws = {}
    local beside = (rare or make_rare()).beside
    if last_of_all(open) + closed_span > now then beside(open.laws, rule, closed_count, closed_span) end
    for i = 3, open.others and #open.others or 0, 4 do
      local count_, span_, last_ = open.others[i], open.others[i + 1], open.others[i + 2]
      if last_ + span_ > now then beside(open.laws, rule, count_, span_) end
    end
  end
  return open
end

local function pack_all(list)
  local parts = {}
  for i = 1, #list, 2 do parts[#parts + 1] = struct.pack(ENTRY, list[i], list[i + 1]) end
  return table.concat(parts)
end

local function head(open)
  return struct.pack(
    HEAD, VERSION, sliding_window.kind, open.born, open.floor, open.base, open.last, open.total, open.span,
    open.most, open.closed_count, open.closed_span, open.lives, open.first, open.count, #open.ahead / 2,
    open.others and #open.others / 2 or 0)
end

-- what is kept of one that comes into being now and of which nothing is used
function sliding_window.unused(rule, now)
  return head({
    born = now, floor = 0, base = 0, last = 0, total = 0, span = rule.span, most = rule.count,
    closed_count = rule.count, closed_span = rule.span, lives = now, first = 0, count = 0, ahead = {},
  })
end

function sliding_window.save(open, key)
  local ttl = 0
  if not open.fresh then ttl = last_of_all(open) + open.span - open.now end
  if ttl <= 0 then
    if open.exists then vacate(sliding_window, key, open.now, open.rule, open.horizon) end
    return
  end
  local tail = pack_all(open.new) .. pack_all(open.ahead)
  local slots = open.count + #open.ahead / 2
  if open.others then
    tail, slots = tail .. pack_all(open.others), slots + #open.others / 2
  end
  if open.whole or slots <= SMALL or open.first > slots + 64 then
    local kept = ''
    if open.written > 0 then
      local first, last = open.first, open.first + open.written
      if first >= open.from and last <= open.to then
        kept = string.sub(open.chunk, SIZE * (first - open.from) + 1, SIZE * (last - open.from))
      else
        kept = redis.call('GETRANGE', key, HEAD_SIZE + SIZE * first, HEAD_SIZE + SIZE * last - 1)
      end
    end
    open.first, open.lives = 0, open.now + ttl
    redis.call('SET', key, head(open) .. kept .. tail, 'PX', lifetime(ttl))
    return
  end
  -- Longer than needed, so that it is not said again each time.
  local longer = open.now + ttl > open.lives
  if longer then open.lives = open.now + ttl + math.floor(ttl / 4) end
  if tail ~= '' then redis.call('SETRANGE', key, HEAD_SIZE + SIZE * (open.first + open.written), tail) end
  redis.call('SETRANGE', key, 0, head(open))
  if longer then redis.call('PEXPIRE', key, lifetime(open.lives - open.now)) end
end
return sliding_window
end
