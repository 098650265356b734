-- Windows of a calendar with reservations, whose permits may flow evenly. Twin of calendar_window.rs, which explains the rule, and of
-- calendar_window/open.rs.
--
-- A rule is { count, period, is_even, first, second, third }. States, windows and rows of free slots are those of the twin; `write` packs a
-- stored state.

local common = require 'common'
local M = { kind = 68, lease = false, born_at = 4, names = 'ticks' }

local floor, max, min, insert, remove = math.floor, math.max, math.min, table.insert, table.remove
local VERSION, EXACT = common.VERSION, common.EXACT

local HEAD, WINDOW, ROW = '<BBBi8i8', '<i8i8i8i8', '<i8i8i8'
local MAX_WINDOWS, MAX_ROWS, NEAR, MOST = 64, 256, 10800000000, 1000000000000

local function own_window(rule, at)
  local since, length = rule.second, rule.third - rule.second
  if at < since then since, length = rule.first, since - rule.first end
  local start = since + floor((at - since) / length) * length
  return { start = start, stop = start + length, used = 0, next = start }
end

local function near(window) return min(floor((window.stop - window.start) / 8), NEAR) end

local function means(rule, window, now)
  if now < rule.first or now >= rule.third then return true end
  local own = own_window(rule, window.stop)
  return min(window.stop - own.start, own.stop - window.stop) <= near(own)
end

-- The place of the window in use that ends after an instant.
local function place_of(open, at)
  local windows, place = open.windows, 1
  while windows[place] and windows[place].stop <= at do place = place + 1 end
  return place
end

-- The window of an instant, and its place.
local function window_at(open, at)
  local place = place_of(open, at)
  local before, after = open.windows[place - 1], open.windows[place]
  before = before and before.stop or open.past and open.past.stop or 0
  if after and after.start <= at then return after, place end
  local own = own_window(open.rule, at)
  if own.start < before then
    if own.stop - before <= near(own) then own.stop = own_window(open.rule, own.stop).stop end
    own.start, own.next = before, before
  end
  if after then own.stop = min(own.stop, after.start) end
  return own, place
end

local function window_in_use(open, at)
  local windows = open.windows
  local window, place = window_at(open, at)
  if windows[place] == window then return window end
  if #windows >= MAX_WINDOWS then return windows[MAX_WINDOWS] end
  insert(windows, place, window)
  return window
end

-- How many slots of a row have ended by `at`.
local function count_before(row, at) return floor(max(at - row.from, 0) / row.length) end

-- The first instant in `cost` free slots of a row from `at` on, and how many are before them; nil if the row has fewer.
local function free_slot(row, at, cost)
  local before = count_before(row, at)
  if before + cost <= row.count then return max(at, row.from + before * row.length), before end
end

local function end_of(row) return row.from + row.length * row.count end

local function slot_of(open, window, at, cost)
  local slot = max(window.next, at)
  for _, row in ipairs(open.free) do
    if row.from >= window.start then slot = min(slot, free_slot(row, at, cost) or slot) end
  end
  return slot
end

local function keep(open, from, length, count)
  local free, place = open.free, 1
  if count <= 0 or length <= 0 or #free >= MAX_ROWS then return end
  while free[place] and free[place].from <= from do place = place + 1 end
  insert(free, place, { from = from, length = length, count = count })
end

local function take_slot(open, start, cost)
  local window, free = window_in_use(open, start), open.free
  if start < window.next then
    for i, row in ipairs(free) do
      local slot, before = free_slot(row, start, cost)
      if slot == start then
        local stop = row.from + (before + cost) * row.length
        remove(free, i)
        keep(open, row.from, row.length, before)
        keep(open, stop, row.length, row.count - before - cost)
        return stop
      end
    end
    return start
  end
  local from, left = max(window.next, open.now), open.rule.count - window.used
  for _, row in ipairs(free) do
    if row.from >= window.start and row.from < window.stop then left = left - max(row.count - count_before(row, open.now), 0) end
  end
  local interval = floor((window.stop - from) / max(left, cost, 1))
  if interval > 0 then keep(open, from, interval, floor((start - from) / interval)) end
  window.next = min(start + cost * interval, window.stop)
  return window.next
end

local function free_slots(open, window, from, stop, count)
  local free, length = open.free, floor((stop - from) / max(count, 1))
  if stop ~= window.next then
    if from + length * count > open.clock then keep(open, from, length, count) end
    return
  end
  for i = #free, 1, -1 do
    local row = free[i]
    if end_of(row) == from and row.from >= window.start then
      from = row.from
      remove(free, i)
    end
  end
  window.next = from
end

-- Reads a stored state; nil of a foreign value.
local function stored(raw)
  if #raw < 19 then return nil end
  local version, kind, count, born, clock = struct.unpack(HEAD, raw)
  local first = 20 + 32 * count
  if version ~= VERSION or kind ~= M.kind or count > MAX_WINDOWS or #raw + 1 < first or (#raw + 1 - first) % 24 ~= 0 then return nil end
  if born < 0 or clock < 0 or clock >= EXACT or #raw + 1 - first > 24 * MAX_ROWS then return nil end
  local windows, free, before = {}, {}, 0
  for at = 20, first - 1, 32 do
    local start, stop, used, next = struct.unpack(WINDOW, raw, at)
    if start < before or stop <= start or stop >= EXACT or used < 0 or used > MOST or next < start or next > stop then return nil end
    windows[#windows + 1], before = { start = start, stop = stop, used = used, next = next }, stop
  end
  before = 0
  for at = first, #raw, 24 do
    local from, length, n = struct.unpack(ROW, raw, at)
    if from < before or length < 1 or n < 1 or n > MOST or from + length * n >= EXACT then return nil end
    free[#free + 1], before = { from = from, length = length, count = n }, from
  end
  return { windows = windows, free = free, born = born, clock = clock }
end

function M.rule(text, from)
  local count, even, first, second, third = struct.unpack('<ddddd', text, from)
  return { count = count, period = second - first, is_even = even > 0, first = first, second = second, third = third }
end

function M.pace(rule) return rule.period, rule.count end

function M.used_up(rule, now, from, to)
  local parts, at = {}, max(from, own_window(rule, now).start)
  while at <= to and #parts < MAX_WINDOWS do
    local own = own_window(rule, at)
    parts[#parts + 1] = struct.pack(WINDOW, own.start, own.stop, rule.count, own.stop)
    at = own.stop
  end
  return struct.pack(HEAD, VERSION, M.kind, #parts, now, now) .. table.concat(parts)
end

function M.read(raw, now, rule)
  local open = { rule = rule, now = now, clock = now, floor = now, born = now, windows = {}, free = {} }
  if not raw then return open end
  local state = stored(raw)
  if not state then return nil end
  local clock, count = max(now, state.clock), #state.windows
  for _, window in ipairs(state.windows) do
    if window.stop <= clock then open.past = clock < window.stop + near(window) and window or nil end
  end
  if count > 0 and state.windows[count].stop <= clock then return open end
  open.clock, open.born = clock, state.born
  local windows, is_same = open.windows, true
  for _, window in ipairs(state.windows) do
    local last = windows[#windows]
    if window.stop > clock then
      if window.start >= (last and last.stop or 0) and means(rule, window, clock) then
        windows[#windows + 1] = window
      else
        local own = window_in_use(open, max(window.start, clock))
        own.used = min(own.used + window.used, MOST)
        own.next = min(max(own.next, window.next), own.stop)
        is_same = false
      end
    end
  end
  if rule.is_even and is_same then
    for _, row in ipairs(state.free) do
      if end_of(row) > clock then open.free[#open.free + 1] = row end
    end
  end
  if now < clock then open.floor = max(now, window_at(open, clock).start) end
  return open
end

function M.earliest(open, from, cost, kept)
  local at, rule = max(open.now + from, open.floor), open.rule
  while true do
    local window = window_at(open, at)
    if window.used == 0 or window.used + cost + (kept or 0) <= rule.count then
      local slot = rule.is_even and slot_of(open, window, at, cost) or at
      if slot < window.stop then return slot - open.now, slot end
    end
    at = window.stop
  end
end

local function reset_after(open)
  local last = open.windows[#open.windows]
  return last and max(last.stop - open.now, 0) or 0
end

function M.take(open, start, cost)
  local stop = open.rule.is_even and take_slot(open, start, cost) or start
  local window = window_in_use(open, start)
  window.used = min(window.used + cost, MOST)
  return start, 0, open.born, stop
end

function M.refund(open, whole, _, born, aux, cost)
  local place = place_of(open, whole)
  local window = open.windows[place]
  if not window or born ~= open.born or window.start > whole then return false end
  if window.used < cost or window.used >= MOST then return false end
  window.used = window.used - cost
  if window.used == 0 then
    remove(open.windows, place)
    for i = #open.free, 1, -1 do
      local from = open.free[i].from
      if from >= window.start and from < window.stop then remove(open.free, i) end
    end
  elseif open.rule.is_even and whole < aux and aux <= window.stop then
    free_slots(open, window, whole, aux, cost)
  end
  if #open.windows == 0 then
    local now = open.now
    open.clock, open.floor, open.born, open.free = now, now, now, {}
  end
  return true
end

-- Whether slots later than the next one are taken, which comes in `next` µs.
function M.is_taken_after(open, next)
  local last, at = open.windows[#open.windows], open.now + next
  return last and (open.rule.is_even and last.next or last.start) > at
end

function M.level(open)
  local next, at = M.earliest(open, 0, 1)
  local window = window_at(open, at)
  local remaining = next == 0 and open.rule.count - window.used or 0
  if open.rule.is_even and remaining > 1 then
    local flow = at < window.next and remaining or window.stop - at
    remaining = min(max(remaining - flow + 1, 1), remaining)
  end
  return remaining, next, reset_after(open)
end

function M.lasts(open)
  local last = open.windows[#open.windows] or open.past
  return last and max(last.stop + near(last) - open.now, 0) or 0
end

function M.write(open)
  local windows = #open.windows > 0 and open.windows or { open.past }
  local parts = { struct.pack(HEAD, VERSION, M.kind, #windows, open.born, open.clock) }
  for _, window in ipairs(windows) do
    parts[#parts + 1] = struct.pack(WINDOW, window.start, window.stop, window.used, window.next)
  end
  for _, row in ipairs(open.free) do parts[#parts + 1] = struct.pack(ROW, row.from, row.length, row.count) end
  return table.concat(parts)
end

return M
