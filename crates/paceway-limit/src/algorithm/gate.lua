-- The record of what the upstream has refused of a limiter. Twin of gate.rs, which explains it, and of the files of gate/. An open gate
-- has the fields of the twin, but `stop` for `until`; and with a working rate those of the curve.
--
-- A stored gate is ahead of the stored state: `V`, stop, from, origin, first, spent, last, unused, used, knee, the written rate, unit,
-- clear, even, left, reset (8 bytes each), early (1), status (2), the number of its holes (2), and their starts and ends;
-- little-endian. In an open gate `low` and `written` are permits a µs, and `counts_by` is the stored written rate; with a knee it has
-- the line of its `count`.
-- The state is empty where the limiter is unused. A concurrency limiter keeps its pause as a member of its sorted set.

local call, common = require 'call', require 'common'
local M = {}

local redis, ceil, floor, max, min = redis, math.ceil, math.floor, math.max, math.min
local EXACT, MAX_BUDGET, byte, format, unpack_from = common.EXACT, common.MAX_BUDGET, string.byte, string.format, struct.unpack
local GATE, LETTER, LEAST_UNIT = '<c1i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8BI2I2', 86, 1
local FOUND, GUESS, GROWTH, USED, REMEMBERED, EVEN = 4, 8, 2, 0.5, 86400000000, 86400000000
local PART, LESS, STEP, KEPT, LEAST, MOST_EARLY = 1000, 0.98, 0.4, 0.7, 0.01, 3
local BACK, WHOLE, EARLY, DEPTH, PER_MICRO, PRECISE, STEPS, ROUNDING, LONGEST = 22, 28, 0.25, 0.015, 1e15, 0.25, 64, 1e-3, 2.2e15

local COUNT, FIRST = { per = PART, den = 1, most = 1000000000 }, 1e15

-- The bytes of a stored gate without holes, which are ahead of a state.
M.SIZE, M.LETTER = 126, LETTER

local function rate_at(gate, x)
  if x < BACK then
    local y = 1 - x / BACK
    return gate.low * (1 - gate.depth * y * y * y)
  end
  local z = min((x - BACK) / (WHOLE - BACK), 1)
  return gate.low + (gate.written - gate.low) * z * z
end

local function permits_at(gate, x)
  if x < BACK then
    local y = 1 - x / BACK
    return gate.low * gate.unit * (x + gate.depth * BACK / 4 * (y * y * y * y - 1))
  end
  local past = min(x - BACK, WHOLE - BACK)
  local z, over = past / (WHOLE - BACK), x - BACK - past
  local more = (gate.written - gate.low) * z * z * past / 3
  return gate.unit * (gate.low * (BACK - gate.depth * BACK / 4 + past) + more + gate.written * over)
end

local function rate(gate, after) return rate_at(gate, max(after, 0) / gate.unit) end

local function permits(gate, after) return permits_at(gate, max(after, 0) / gate.unit) end

local function time(gate, wanted)
  if wanted <= 0 then return 0 end
  local least, x = PRECISE / gate.unit, wanted / (gate.low * (1 - gate.depth)) / gate.unit
  for _ = 1, STEPS do
    local step = (permits_at(gate, x) - wanted) / (rate_at(gate, x) * gate.unit)
    x = x - step
    if step < least then break end
  end
  return min(ceil(x * gate.unit - ROUNDING), LONGEST)
end

-- How many bytes the gate at the beginning of a stored value is, of which not all may be read.
function M.size(raw) return #raw < M.SIZE and M.SIZE or M.SIZE + 16 * unpack_from('<I2', raw, M.SIZE - 1) end

-- The gate of a stored value, nil if it has none; and the state, false if it is absent.
local function split(raw)
  if not raw or byte(raw) ~= LETTER or #raw < M.SIZE then return nil, raw end
  local _, stop, from, origin, first, spent, last, unused, used, knee, counts_by, unit, clear, even, left, reset, early, status,
    count = unpack_from(GATE, raw)
  local size = M.size(raw)
  for _, number in ipairs { stop, from, origin, first, spent, last, unused, used, unit, clear, even, left, reset } do
    if number < 0 or number >= EXACT then return nil, raw end
  end
  if knee < 0 or knee > PER_MICRO or knee > 0 and (unit < LEAST_UNIT or counts_by <= 0) or #raw < size then return nil, raw end
  local gate = {
    stop = stop, from = from, origin = origin, first = first, spent = spent, last = last, unused = unused, used = used,
    knee = knee, counts_by = counts_by, unit = unit, clear = clear, even = even, left = left, reset = reset,
    early = min(early, GUESS), status = status, holes = {},
  }
  for i = 1, 2 * count do gate.holes[i] = unpack_from('<i8', raw, M.SIZE + 8 * i - 7) end
  return gate, #raw > size and string.sub(raw, size + 1)
end

function M.pack(gate)
  if not gate then return '' end
  local from, first, spent, used, knee, unit = gate.from, gate.first, gate.spent, gate.used, gate.knee, gate.unit
  local left, reset, early, status, holes = gate.left, gate.reset, gate.early, gate.status, gate.holes
  local head = struct.pack(
    GATE, 'V', gate.stop, from, gate.origin, first, spent, gate.last, gate.unused, used, knee, gate.counts_by, unit, gate.clear,
    gate.even, left, reset, early, status, #holes / 2
  )
  local parts = { head }
  for i = 1, #holes do parts[i + 1] = struct.pack('<i8', holes[i]) end
  return table.concat(parts)
end

-- Until when the permits of a written rate flow one by one.
local function flows_until(gate) return gate.from + gate.unit * WHOLE + gate.even end

-- For how long after its end a found rate is remembered; nil for a guess that is the same as none.
local function remembered(gate)
  if gate.early < GUESS or gate.knee ~= gate.bounds.start then return REMEMBERED end
  return gate.used > 0 and gate.unit * (WHOLE - BACK) or nil
end

function M.ends(gate)
  local learned = gate.bounds and gate.knee > 0 and remembered(gate)
  learned = learned and gate.from + gate.unit * WHOLE + learned or not gate.bounds and 2 * flows_until(gate) - gate.from
  return max(gate.stop, gate.reset, learned or 0)
end

-- The rule of a limiter, which may have bounds.
function M.rule(algorithm, has_bounds, text, from)
  if not has_bounds then return algorithm.rule(text, from) end
  local start, least, unit, after = unpack_from('<ddd', text, from)
  local rule = algorithm.rule(text, after)
  rule.bounds = { start = max(start, least), least = least, unit = unit }
  return rule
end

local function written_of(algorithm, rule)
  local period, count = algorithm.pace(rule)
  return count / period
end

local function set_written(gate, written)
  gate.written, gate.low, gate.depth = written, min(gate.knee / PER_MICRO, written), DEPTH * 2 ^ (gate.early % FOUND)
end

local function begins(gate) return gate.early == GUESS and gate.unit * BACK or 0 end

local function flown_at(gate, after) return max(permits(gate, after) - permits(gate, begins(gate)), 0) end

local function first_count() return FIRST + call.now % 999983 * 1000 * PART end

-- The count that has flown at an instant, rounded up.
local function count_at(gate, at) return gate.origin + min(ceil(flown_at(gate, at - gate.from) * PART), EXACT / 4) end

-- The line of the count. When no request waits, what calls left unused is no longer spent.
local function set_line(gate)
  -- Instants are whole µs, so that a place may begin up to a µs before its own.
  local flown = count_at(gate, gate.now - 1)
  local holes, tail, unused = {}, max(gate.spent - flown, 0), gate.unused
  if gate.last <= flown then tail, unused = max(tail - unused, 0), 0 end
  for i = 1, #gate.holes, 2 do
    local start, stop = gate.holes[i] - flown, gate.holes[i + 1] - flown
    if stop - max(start, 0) >= PART then holes[#holes + 1], holes[#holes + 2] = start, stop end
  end
  gate.count = {
    rule = COUNT, now = flown, born = flown, tail = tail, holes = holes, unused = min(unused, tail),
    present = count_at(gate, gate.now) - flown,
  }
end

-- Keeps what was done on the line of the count.
local function keep(gate)
  local count, holes = gate.count, {}
  for i = 1, #count.holes do holes[i] = count.now + count.holes[i] end
  gate.spent, gate.holes, gate.unused = count.now + count.tail, holes, count.unused
  gate.last = min(gate.last, gate.spent)
end

local function end_of(bounds, knee, written) return bounds and min(knee / PER_MICRO * GROWTH, written) or written end

-- The next guess where nothing is known, the curve has ended, its unit was another one, or past the way back its permits are not
-- used. The same again at the same instant: a state may be read twice in a call.
local function guide(gate, bounds)
  local now, knee = call.now, gate.knee
  if knee == 0 or gate.early < FOUND then
    knee = bounds.start
  else
    local at = now - gate.from
    local is_used = gate.used >= flown_at(gate, at) * USED - 1
    local is_same = gate.early < GUESS or gate.unit == bounds.unit
    if is_used and at >= gate.unit * WHOLE then
      knee = floor(gate.written * PER_MICRO)
    elseif is_same and (is_used or at < gate.unit * BACK) then
      gate.knee = max(knee, bounds.least)
      return
    end
  end
  gate.knee, gate.unit, gate.used, gate.early, gate.status = max(knee, bounds.least), bounds.unit, 0, GUESS, 0
  gate.from = now - bounds.unit * BACK
end

-- It keeps the pause, the remainder, and for how long permits flowed one by one.
local function forget_curve(gate)
  gate.origin, gate.first, gate.spent, gate.last, gate.unused, gate.holes = 0, 0, 0, 0, 0, {}
  gate.used, gate.knee, gate.counts_by, gate.clear, gate.early, gate.has_changed = 0, 0, 0, 0, 0, true
end

local function follow(algorithm, gate, rule)
  local bounds, knee, from, now = rule.bounds, gate.knee, gate.from, call.now
  local flown = 0
  gate.now, gate.bounds = now, bounds
  if knee > 0 then
    set_written(gate, gate.counts_by / PER_MICRO)
    flown = count_at(gate, now)
  end
  local written = written_of(algorithm, rule)
  if bounds then
    set_written(gate, end_of(bounds, knee, written))
    guide(gate, bounds)
    written = end_of(bounds, gate.knee, written)
  elseif knee > 0 and now >= flows_until(gate) then
    forget_curve(gate)
  end
  if gate.knee == 0 then return end
  local counts_by = floor(written * PER_MICRO)
  -- As the next one reads it: the same has flown then.
  set_written(gate, counts_by / PER_MICRO)
  if gate.counts_by ~= counts_by or gate.knee ~= knee or gate.from ~= from then
    if knee > 0 and gate.spent > flown then gate.used = max(gate.used, 1) end
    if knee == 0 or bounds and not remembered(gate) or flown > EXACT / 2 then
      flown = first_count()
      gate.first, gate.spent, gate.last, gate.unused, gate.holes = flown, flown, flown, 0, {}
    end
    gate.origin, gate.counts_by, gate.has_changed = gate.origin + flown - count_at(gate, now), counts_by, true
  end
  set_line(gate)
end

-- A gate with these fields beside those of `old`, which may be absent.
local function changed(old, fields)
  local gate = {
    stop = 0, from = 0, origin = 0, first = 0, spent = 0, last = 0, unused = 0, used = 0, knee = 0, counts_by = 0, unit = 0, clear = 0,
    even = 0, left = 0, reset = 0, early = 0, status = 0, holes = {},
  }
  for _, values in ipairs { old or {}, fields } do
    for name in pairs(gate) do
      if values[name] then gate[name] = values[name] end
    end
  end
  return gate
end

-- The gate of a limiter with bounds of which the store has none.
function M.guess(algorithm, rule)
  local gate = changed(nil, {})
  follow(algorithm, gate, rule)
  return gate
end

local function open_by(algorithm, gate, rule)
  if not rule.bounds and gate.early >= FOUND then
    forget_curve(gate)
    gate.from, gate.unit, gate.even = gate.stop, 0, 0
  end
  gate.bounds = rule.bounds
  if M.ends(gate) <= call.now then return rule.bounds and M.guess(algorithm, rule) or nil end
  follow(algorithm, gate, rule)
  return gate
end

-- Replaces the gate of a stored value, or removes it. The state stays as it is.
function M.replace(key, gate)
  local _, raw = split(redis.call('GET', key))
  if not raw and not gate then return redis.call('DEL', key) end
  local left = raw and max(redis.call('PTTL', key) - common.GRACE_MS, 0) or 0
  if gate then left = max(left, ceil((M.ends(gate) - call.now) / 1000)) end
  redis.call('SET', key, M.pack(gate) .. (raw or ''), 'PX', common.lifetime(left * 1000))
end

-- The gate and the state of a value that was read, and of how many bytes the gate in the store is. A gate that has ended is removed.
function M.read(algorithm, key, value, rule)
  local stored, raw = split(value)
  if not stored then return nil, value, 0 end
  local gate = open_by(algorithm, stored, rule)
  local is_kept = gate == stored
  if not is_kept or gate.has_changed then M.replace(key, is_kept and gate or nil) end
  return gate, raw, is_kept and M.SIZE + 8 * #gate.holes or 0
end

-- The start of the first free permits, in the count from now.
local function free(count, cost)
  local length = cost * PART
  if count.unused >= length then return -length end
  local start = require('timeline').free(count, 0, length)
  return start < count.tail and start or max(start, count.present)
end

-- The instant of a place on the line of the count, µs from now.
local function time_of(gate, start)
  return gate.from + time(gate, (gate.count.now + start - gate.origin) / PART + permits(gate, begins(gate))) - gate.now
end

-- The first instant at which permits flow at the working rate, µs from now; it may be past.
local function flows_at(gate, cost)
  if gate.knee == 0 then return 0 end
  local start = free(gate.count, cost)
  return start <= gate.count.present and min(gate.from - gate.now, 0) or time_of(gate, start)
end

function M.earliest(gate, algorithm, open, from, cost, kept)
  if not kept or gate.knee > 0 then kept = 0 end
  local at = max(from, gate.stop - gate.now, flows_at(gate, cost))
  if gate.now + at < gate.reset and gate.left < cost + kept then at = gate.reset - gate.now end
  local earliest, start = algorithm.earliest(open, min(at, MAX_BUDGET), cost, kept)
  return max(earliest, at), start
end

function M.take(gate, algorithm, open, start, cost, at)
  local whole, ticks, born, aux = algorithm.take(open, start, cost)
  local place
  if gate.now + at < gate.reset then gate.left, place = max(gate.left - cost, 0), -gate.reset end
  if gate.knee > 0 then
    -- The first free place, even if another limiter delays the request: a later one would leave gaps in which no request fits.
    local count = gate.count
    local first = free(count, cost)
    if first < 0 then count.unused = count.unused + first else require('timeline').take(count, first, cost) end
    place = max(count.now + first, gate.first)
    gate.last = max(gate.last, place)
    keep(gate)
    gate.used = min(gate.used + cost, EXACT - 1)
  end
  if place and algorithm.names == 'aux' then aux = place end
  if place and algorithm.names == 'ticks' then ticks = place end
  return whole, ticks, born, aux
end

-- Whether it delays no request, and only remembers.
function M.is_idle(gate) return gate.knee == 0 and max(gate.stop, gate.reset) <= gate.now end

-- Whether requests that wait may move up.
function M.takes_back(gate, algorithm) return gate.knee == 0 or algorithm.names and gate.now >= gate.reset end

-- Whether slots of a working rate are promised.
function M.has_promised(gate) return gate.knee > 0 and gate.count.tail > 0 end

-- The field of a grant for the gate; false where its algorithm has none.
local function place_of(algorithm, ticks, aux)
  return algorithm.names == 'aux' and aux or algorithm.names == 'ticks' and ticks
end

-- Returns the permits of a grant to the count from which they were taken; false if the gate has another one now.
function M.refund(open, algorithm, ticks, aux, cost)
  local gate, place = open.gate, place_of(algorithm, ticks, aux)
  if not place then return false end
  if gate.knee == 0 then
    local is_of_remainder = place < 0 and place == -gate.reset
    if is_of_remainder then gate.left = min(gate.left + cost, EXACT - 1) end
    return is_of_remainder
  end
  local count, length = gate.count, cost * PART
  local start = place - count.now
  if place < gate.first then return false end
  local past = min(max(-start, 0), length)
  local unused = min(count.unused + past, count.tail)
  local is_left = past < length and require('timeline.holes').leave(count, start + past, start + length)
  if not is_left and unused == count.unused then return false end
  count.unused = unused
  keep(gate)
  set_line(gate)
  gate.used = max(gate.used - cost, 1)
  -- As if it was read again.
  if gate.bounds then follow(algorithm, gate, open.rule) end
  return true
end

-- remaining, next, reset_after, paused, rate, since, status
function M.level(gate, algorithm, open)
  local remaining, _, reset_after = algorithm.level(open)
  local paused, working, since = max(gate.stop - gate.now, 0), nil, 0
  if gate.knee > 0 then
    since = gate.now - gate.from
    remaining, working, since = min(remaining, 1), floor(rate(gate, since) * PER_MICRO), since - begins(gate)
  end
  if gate.now < gate.reset then remaining = min(remaining, gate.left) end
  if max(paused, flows_at(gate, 1)) > 0 then remaining = 0 end
  return remaining, M.earliest(gate, algorithm, open, 0, 1), max(reset_after, paused), paused, working, since, gate.status
end

-- Tells all gateways that a limiter is paused for `left` µs, or that its next slot is `free` then. A refused PUBLISH must not end the
-- script after other keys were written: the gateways learn it from the next decision. A status with `-` says that the rate has
-- fallen, so that all requests that wait ask again; `=` and a number that those do that wait for more permits within `left` µs.
function M.publish(key, left, status)
  redis.pcall('PUBLISH', 'paceway:call:pauses' .. call.database, format('%s %.0f %s', key, left, status))
end

-- The knee and `early` after a refusal of a call that was `sent` by the gate `old`; nil: by the rule alone.
local function lowered(old, sent, written)
  -- At the written rate it is a first one again.
  if not old or sent - old.from >= old.unit * WHOLE then return written, 0 end
  local after, early, unit = sent - old.from, min(old.early % FOUND + 1, MOST_EARLY), old.unit
  if old.early == GUESS then
    after = max(after, begins(old))
    return (permits(old, after) - permits(old, after - unit)) / unit * LESS, 0
  end
  local was = rate(old, after)
  if after < unit then return min(max(permits(old, after) / unit, was * KEPT), was), early end
  if after < EARLY * BACK * unit then return was, early end
  return after >= BACK * unit and old.low + (was * LESS - old.low) * STEP or was, 0
end

-- The gate after a refusal, and whether the rate has fallen.
local function refused(old, span, status, unit, ago, written)
  local now = call.now
  local stop = now + span
  if old then
    if stop <= old.stop then stop, status = old.stop, old.status end
    local sent = now - ago
    if unit == 0 or old.knee > 0 and sent < max(old.stop, old.clear) then
      if unit > 0 and sent >= old.stop then stop = max(stop, old.clear) end
      local later = { stop = stop, status = status }
      if unit > 0 and stop > old.stop then
        later.from, later.origin = stop - begins(old), count_at(old, stop)
        later.first, later.unused = max(old.first, later.origin), 0
      end
      return changed(old, later)
    end
  elseif unit == 0 then
    return changed(nil, { stop = stop, from = stop, status = status })
  end
  local knee, early = lowered(old and old.knee > 0 and old, now - ago, written)
  local bounds, even = old and old.bounds, old and old.even or 0
  if bounds then early = early + FOUND end
  if old and old.knee == 0 then even = min(max(2 * even, old.unit * WHOLE), max(old.unit * WHOLE, EVEN)) end
  local least = bounds and bounds.least / PER_MICRO / (1 - DEPTH * 2 ^ (early % FOUND)) or max(written * LEAST, 1 / unit)
  local found = min(max(knee, least), written)
  local is_short = bounds and (stop - now) * found < 1
  knee = floor(found * PER_MICRO)
  local counts_by = floor(end_of(bounds, knee, written) * PER_MICRO)
  local origin = old and old.knee > 0 and max(old.spent, count_at(old, now)) or first_count()
  return changed(old, {
    stop = stop, from = stop, origin = origin, first = origin, spent = is_short and origin + PART or origin, last = origin,
    unused = 0, used = 0, knee = knee, counts_by = counts_by, unit = unit, clear = now + unit, even = even, early = early,
    status = status, holes = {},
  }), true
end

-- Pauses a limiter for `span` µs, because a call that was sent `ago` µs ago was refused. A `unit` of 0 leaves the rate as it is.
function M.pause(state, span, status, unit, ago)
  local algorithm, is_open, stop, fell = state.algorithm, state.open, call.now + span, nil
  if algorithm.pause then
    if not algorithm.pause(state, stop, status) then return end
    state.dirty = true
  else
    local gate
    gate, fell = refused(is_open.gate, span, status, unit, ago, written_of(algorithm, is_open.rule))
    gate = open_by(algorithm, gate, is_open.rule)
    if not gate then return end
    if not fell and is_open.gate and gate.stop == is_open.gate.stop then return end
    is_open.gate, state.has_new_gate, stop = gate, true, gate.stop
  end
  M.publish(state.key, stop - call.now, fell and status .. '-' or status)
end

-- An answer says that `left` permits remain for `span` µs; requests of the gateway wait for `waiting`. A limiter that grants no `next`
-- permits in that time, if not 0, needs no count while some are left. A count ends at an odd µs if nothing remains, else at an even one.
function M.remain(state, left, waiting, next, span)
  local algorithm, is_open, now = state.algorithm, state.open, call.now
  local old, recalls, reset = is_open.gate, left == 0 or waiting > left
  if old and now < old.reset then
    if old.left == 0 and old.reset % 2 == 1 or not recalls and left >= old.left then return end
    reset = recalls and floor(old.reset / 2 + 1) * 2 or old.reset
  else
    if left > 0 and next > 0 and algorithm.earliest(is_open, 0, next) >= span then return end
    reset, recalls = ceil((now + span) / 2) * 2, recalls or not old or old.knee == 0
  end
  if left == 0 then reset = floor(reset / 2) * 2 + 1 end
  is_open.gate, state.has_new_gate = open_by(algorithm, changed(old, { left = left, reset = reset }), is_open.rule), true
  if is_open.gate and recalls then M.publish(state.key, reset - now, '=0') end
end

return M
