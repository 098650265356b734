-- Sliding window log with reservations: the rule, and how a state is kept. Twin of sliding_window.rs, which explains the rule.
--
-- A stored state: what `head` packs, then slots of 16 bytes: some that are past, the ring from the slot `first` on (instant, permits
-- up to it), the entries ahead (instant, permits), and `others`. A long ring is read and written in pieces: a decision costs the
-- same whatever its count.

local common, state = require 'common', require 'sliding_window.state'

local redis, floor, max, min, remove, sub = redis, math.floor, math.max, math.min, table.remove, string.sub
local pack, unpack_from, VERSION, KIND, MAX_HOLES = struct.pack, struct.unpack, common.VERSION, 83, common.MAX_HOLES
local HEAD, HEAD_SIZE, ENTRY, SIZE, CHUNK = '<BBi8i8i8i8i8i8i8i8i8i8i4i4I2I2', state.HEAD_SIZE, state.ENTRY, state.SIZE, state.CHUNK
-- The number of slots up to which a state is read and written whole.
local SMALL = 24

local M = { kind = KIND, lease = false, names = 'aux', born_at = 3, piece = HEAD_SIZE + CHUNK * SIZE }

local MAX_STAMPS = 10000
local free, grained, last_of_all, new_walk = state.free, state.grained, state.last_of_all, state.new_walk

function M.rule(text, from)
  local count, span, grain = unpack_from('<ddd', text, from)
  local rule = { count = count, span = span, grain = grain }
  -- The laws of a state that no other rule uses.
  rule.laws = { rule }
  return rule
end

function M.pace(rule) return rule.span, rule.count end

local function last_broken(open, law, i, at, number, cost)
  local ahead = open.ahead
  local broken, stop, walk = 0, number, new_walk(open)
  while i <= #ahead and ahead[i] < at + law.span do
    stop = stop + ahead[i + 1]
    local last = stop + cost - 1
    if last - law.count >= number or free(open, walk, law, last) > ahead[i] then broken = ahead[i] end
    i = i + 2
  end
  return broken
end

function M.earliest(open, from, cost, kept)
  local rule = open.rule
  if kept and kept > 0 then cost = max(min(cost + kept, rule.count), cost) end
  local at = grained(rule, open.now + from)
  if open.fresh then return from, at end
  local first = from == 0 and cost == 1
  -- The answer is needed three times: to decide, to take, and for the level.
  if first and open.first_at then
    at = open.first_at
  else
    if at < open.last then at = open.last end
    local ahead, laws, i, number, walks = open.ahead, open.laws, 1, open.total, {}
    while true do
      while i <= #ahead and ahead[i] <= at do
        number, i = number + ahead[i + 1], i + 2
      end
      local later = 0
      for l = 1, #laws do
        walks[l] = walks[l] or new_walk(open)
        later = max(later, free(open, walks[l], laws[l], number + cost - 1))
      end
      for l = 1, later <= at and i <= #ahead and #laws or 0 do
        later = max(later, last_broken(open, laws[l], i, at, number, cost))
      end
      if later <= at then break end
      at = later
    end
    if first then open.first_at = at end
  end
  return max(from, at - rule.grain + 1 - open.now), at
end

function M.take(open, at, cost)
  local rule = open.rule
  if open.fresh then
    open.fresh, open.born = false, open.now
    open.floor, open.base, open.span, open.most = open.gone_at or 0, open.gone or 0, rule.span, rule.count
    open.closed_count, open.closed_span, open.others, open.laws = rule.count, rule.span, nil, rule.laws
    open.first, open.count, open.written, open.new, open.hint = 0, 0, 0, {}, 0
    open.ahead, open.chunk, open.from, open.to, open.whole = {}, '', 0, 0, true
    open.first_at = nil
    state.find_last(open)
  end
  local _, first = M.earliest(open, 0, 1)
  local closed = first >= at
  open.first_at = nil
  if open.others or open.closed_count ~= rule.count or open.closed_span ~= rule.span then state.use(open) end
  state.absorb(open, closed and at or open.now)
  if closed then
    state.push(open, at, cost)
  else
    state.insert_ahead(open, at, cost)
    state.absorb(open, open.now)
  end
  state.prune(open, min(open.most, MAX_STAMPS) + 2 + MAX_HOLES)
  return at, 0, open.born, 0
end

function M.refund(open, at, _, born, _, cost)
  if open.fresh or born ~= open.born then return false end
  local ahead, now, span = open.ahead, open.now, max(open.rule.span, open.span)
  open.first_at, open.refunded = nil, min(open.refunded or at, at)
  for i = 1, #ahead, 2 do
    if ahead[i] == at and ahead[i + 1] >= cost then
      ahead[i + 1] = ahead[i + 1] - cost
      if ahead[i + 1] == 0 then
        remove(ahead, i)
        remove(ahead, i)
      end
      state.open_end(open, function(last) return last > now and last > at - span end)
      open.fresh = state.is_past(open)
      return true
    end
  end
  local popped = state.pop_while(open, function(last) return last >= at or (last > now and last > at - span) end)
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
        state.push(open, popped[i], popped[i + 1])
      else
        rest[#rest + 1] = popped[i]
        rest[#rest + 1] = popped[i + 1]
      end
    end
  end
  if #rest > 0 then
    for i = 1, #ahead do rest[#rest + 1] = ahead[i] end
    open.ahead = rest
    state.absorb(open, now)
  end
  open.fresh = state.is_past(open)
  return found
end

local function remaining(open)
  local rule = open.rule
  if open.fresh then return rule.count end
  local at = grained(rule, open.now)
  if open.last > at then return 0 end
  local ahead, start, come, least = open.ahead, open.total, 1, math.huge
  while come <= #ahead and ahead[come] <= at do
    start, come = start + ahead[come + 1], come + 2
  end
  for _, law in ipairs(open.laws) do
    local stop, i = start, come
    least = min(least, state.room_under(open, law, at - law.span) - start)
    while i <= #ahead and ahead[i] < at + law.span do
      stop = stop + ahead[i + 1]
      least = min(least, state.room_under(open, law, ahead[i] - law.span) - stop)
      i = i + 2
    end
  end
  return max(least, 0)
end

-- The permits of a waiting request may be what leaves no room for it earlier, and none for others before its slot.
function M.is_taken_after(open)
  return not open.fresh and last_of_all(open) > max(open.now, open.refunded or 0)
end

function M.level(open)
  local reset_after = 0
  if not open.fresh then reset_after = max(last_of_all(open) + open.rule.span - open.now, 0) end
  local next = M.earliest(open, 0, 1)
  return remaining(open), next, reset_after
end

-- `permits` at the last instant that can have been promised before a loss of data, or none.
function M.used_up(rule, born, _, to)
  local permits = to > 0 and rule.count or 0
  local at, entries = grained(rule, to), permits > 0 and 1 or 0
  local head = pack(
    HEAD, VERSION, KIND, born, 0, 0, at, permits, rule.span, rule.count, rule.count, rule.span, born, 0, entries, 0, 0)
  return entries > 0 and head .. pack(ENTRY, at, permits) or head
end

-- Reads the entries ahead and the other rules; false where they are none.
local function read_slots(open, raw, ahead, others)
  if #raw < (ahead + others) * SIZE then return false end
  local list = open.ahead
  for i = 0, ahead - 1 do
    list[2 * i + 1], list[2 * i + 2] = unpack_from(ENTRY, raw, SIZE * i + 1)
  end
  if others > 0 then open.others = {} end
  for i = 0, others - 1 do
    local a, b = unpack_from(ENTRY, raw, SIZE * (ahead + i) + 1)
    -- The instant of a last grant has nothing beside it.
    if a < 1 or b < (i > 0 and i % 2 == 0 and 0 or 1) then return false end
    open.others[2 * i + 1], open.others[2 * i + 2] = a, b
  end
  return true
end

function M.read(raw, now, rule, key, skip)
  if not raw then
    return { rule = rule, now = now, key = key, skip = skip, fresh = true, hint = 0, ahead = {}, laws = rule.laws }
  end
  if #raw < HEAD_SIZE then return nil end
  local version, kind, born, floor_, base, last, total, span, most, closed_count, closed_span, lives, first, count,
    ahead, others = unpack_from(HEAD, raw)
  if version ~= VERSION or kind ~= KIND then return nil end
  if first < 0 or count < 0 or ahead > MAX_HOLES or span < 1 or base < 0 or total < base then return nil end
  if closed_count < 1 or closed_span < 1 or others > state.MAX_NUMBERS / 2 then return nil end
  local slots = first + count + ahead + others
  if slots <= CHUNK and #raw < HEAD_SIZE + slots * SIZE then return nil end
  local open = {
    rule = rule, now = now, key = key, skip = skip, fresh = false, hint = 0, ahead = {}, laws = rule.laws, new = {},
    born = born, floor = floor_, base = base, last = last, total = total, span = span, most = most,
    closed_count = closed_count, closed_span = closed_span, lives = lives, first = first, count = count, written = count,
    chunk = sub(raw, HEAD_SIZE + 1), from = 0, to = floor((#raw - HEAD_SIZE) / SIZE),
  }
  if ahead + others > 0 then
    local from, its_slots = (first + count) * SIZE
    if slots > CHUNK then
      its_slots = redis.call('GETRANGE', key, skip + HEAD_SIZE + from, skip + HEAD_SIZE + slots * SIZE - 1)
    else
      its_slots = sub(open.chunk, from + 1)
    end
    if not read_slots(open, its_slots, ahead, others) then return nil end
  end
  local is_same = closed_count == rule.count and closed_span == rule.span
  if state.is_past(open) then
    -- It may be past for the rules that wrote it, and not for this one with its longer window.
    local knows = state.tells(open)
    if knows then open.gone_at, open.gone = last_of_all(open), state.number(open) end
    open.fresh = not knows or is_same and others == 0 or open.gone_at + rule.span <= now
    open.floor, open.base, open.ahead = open.gone_at, open.gone, {}
    open.first, open.count, open.written = first + count, 0, 0
    state.find_last(open)
    return open
  end
  if not is_same then state.open_end(open, function(at) return at > now end) end
  if not is_same or others > 0 then state.use_laws(open) end
  return open
end

function M.lasts(open) return open.fresh and 0 or last_of_all(open) + open.span - open.now end

local function pack_all(list)
  local parts = {}
  for i = 1, #list, 2 do parts[#parts + 1] = pack(ENTRY, list[i], list[i + 1]) end
  return table.concat(parts)
end

local function head(open)
  return pack(
    HEAD, VERSION, KIND, open.born, open.floor, open.base, open.last, open.total, open.span,
    open.most, open.closed_count, open.closed_span, open.lives, open.first, open.count, #open.ahead / 2,
    open.others and #open.others / 2 or 0)
end

-- Returns the value to keep after `gate`, the bytes of a gate; nil where the value in the key was changed in its place.
function M.write(open, ttl, gate)
  local key, skip = open.key, #gate
  local tail, slots = pack_all(open.new) .. pack_all(open.ahead), open.count + #open.ahead / 2
  if open.others then tail, slots = tail .. pack_all(open.others), slots + #open.others / 2 end
  if open.whole or slots <= SMALL or open.first > slots + 64 or skip ~= open.skip then
    local kept = ''
    if open.written > 0 then
      local first, last = open.first, open.first + open.written
      if first >= open.from and last <= open.to then
        kept = sub(open.chunk, SIZE * (first - open.from) + 1, SIZE * (last - open.from))
      else
        local from = open.skip + HEAD_SIZE
        kept = redis.call('GETRANGE', key, from + SIZE * first, from + SIZE * last - 1)
      end
    end
    open.first, open.lives = 0, open.now + ttl
    return head(open) .. kept .. tail
  end
  -- The lifetime is set longer than needed, so that it is not set again each time.
  local longer = open.now + ttl > open.lives
  if longer then open.lives = open.now + ttl + floor(ttl / 4) end
  if tail ~= '' then redis.call('SETRANGE', key, skip + HEAD_SIZE + SIZE * (open.first + open.written), tail) end
  redis.call('SETRANGE', key, 0, gate .. head(open))
  if longer then redis.call('PEXPIRE', key, common.lifetime(open.lives - open.now)) end
end

return M
