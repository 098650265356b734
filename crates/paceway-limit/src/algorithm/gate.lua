-- The gate of a paused limiter. Twin of gate.rs, which explains it: same names, same order, same arithmetic.
--
-- An open gate is a table:
--   stop                  µs    the end of the pause (`until` in the twin)
--   spent                 ns    the time of the permits that were granted since
--   status                      of the answer that caused the pause
--   now                   µs    of the store's clock
--   period, count, most         the token bucket that the gate is after the pause
--
-- A stored gate is ahead of the stored state: `P`, stop, spent (8 bytes each), status (2 bytes), little-endian. The
-- state is empty where the limiter is unused. `spent` is below 0 where the bucket holds more than one permit at `stop`. A
-- concurrency limiter keeps its gate as a member of its sorted set.
if part == 'gates' then
local GATE, FULL = '<c1i8i8I2', 1 - EXACT

-- The gate of a stored value, nil if it has none; and the state, false if it is absent.
local function split(raw)
  if not raw or #raw < GATE_SIZE or string.byte(raw) ~= 80 then return nil, raw end
  local _, stop, spent, status = struct.unpack(GATE, raw)
  if stop < 0 or stop >= EXACT or spent < FULL or spent >= EXACT then return nil, raw end
  return { stop = stop, spent = spent, status = status }, #raw > GATE_SIZE and string.sub(raw, GATE_SIZE + 1)
end

local function pack(gate)
  return gate and struct.pack(GATE, 'P', gate.stop, gate.spent, gate.status) or ''
end

-- The time in which permits flow in, ns
local function time(gate, permits)
  return math.ceil(permits * gate.period * 1000 / gate.count)
end

-- The time of the permits that were granted and of more, µs; 0 for permits that the bucket holds
local function span(gate, permits)
  return math.max(math.ceil((gate.spent + time(gate, permits)) / 1000), 0)
end

local function ends(gate) return gate.stop + span(gate, gate.most - 1) end

-- The gate for the rule of its limiter; nil when it delays no request any more.
local function open(algorithm, gate, now, rule)
  gate.now = now
  gate.period, gate.count, gate.most = 0, 1, 1
  if algorithm.ramp then gate.period, gate.count, gate.most = algorithm.ramp(rule) end
  return ends(gate) > now and gate or nil
end

-- Replaces the gate of a stored value, or removes it. The state stays as it is.
local function replace(key, gate, now)
  local _, raw = split(redis.call('GET', key))
  if not raw and not gate then return redis.call('DEL', key) end
  local left = raw and math.max(redis.call('PTTL', key) - GRACE_MS, 0) or 0
  if gate then left = math.max(left, math.ceil((ends(gate) - now) / 1000)) end
  redis.call('SET', key, pack(gate) .. (raw or ''), 'PX', lifetime(left * 1000))
end

-- The gate and the state of a value that was read. A gate that has ended is removed, so that the limiter can take the
-- plain way again.
local function read(algorithm, key, value, now, rule)
  local gate, raw = split(value)
  if not gate then return nil, value end
  gate = open(algorithm, gate, now, rule)
  if not gate then replace(key, nil, now) end
  return gate, raw
end

-- `algorithm.earliest` for a limiter with this gate
local function earliest(gate, algorithm, open, from, cost)
  local at = math.max(gate.stop + span(gate, cost - 1) - gate.now, from)
  local earliest, start = algorithm.earliest(open, math.min(at, MAX_BUDGET), cost)
  return math.max(earliest, at), start
end

-- `algorithm.take` for a limiter with this gate. The grant names the gate.
local function take(gate, algorithm, open, start, cost)
  local whole, ticks, born, aux = algorithm.take(open, start, cost)
  gate.spent = math.min(gate.spent + time(gate, cost), EXACT - 1)
  if algorithm.names == 'aux' then aux = gate.stop end
  if algorithm.names == 'ticks' then ticks = gate.stop end
  return whole, ticks, born, aux
end

-- Returns the permits of a grant to the gate; false if they were not taken through it. The gate can end by that: then
-- later entries of the call meet none, and their grants do not name it.
local function refund(open, algorithm, ticks, aux, cost)
  local gate = open.gate
  local name = algorithm.names == 'aux' and aux or algorithm.names == 'ticks' and ticks
  if name ~= gate.stop then return false end
  gate.spent = math.max(gate.spent - time(gate, cost), gate.spent < 0 and FULL or 0)
  if ends(gate) <= gate.now then open.gate = nil end
  return true
end

-- remaining, next, reset_after, paused
local function level(gate, algorithm, open)
  local remaining, _, reset_after = algorithm.level(open)
  local room = 0
  if gate.now >= gate.stop then
    room = (gate.now - gate.stop) * 1000 - gate.spent
    room = math.max(math.floor(room * gate.count / (gate.period * 1000)) + 1, 0)
  end
  local next = earliest(gate, algorithm, open, 0, 1)
  return math.min(remaining, room), next, math.max(reset_after, ends(gate) - gate.now),
    math.max(gate.stop - gate.now, 0)
end

-- Tells all gateways that a limiter is paused for `left` µs. A refused PUBLISH must not end the script after other keys
-- were written: the gateways learn the pause from the next decision.
local function publish(key, left, status)
  redis.pcall('PUBLISH', 'paceway:call:pauses' .. (ARGV[5] or ''), string.format('%s %.0f %d', key, left, status))
end

-- Pauses a limiter for `span` µs. A pause that ends earlier than the present one changes nothing. One that does not empty
-- the limiter (0) says nothing about its level.
local function pause(state, span, status, empties)
  local algorithm, is_open, stop = state.algorithm, state.open, now + span
  if algorithm.pause then
    if not algorithm.pause(is_open, stop, status) then return end
    state.dirty = true
  else
    local old = is_open.gate
    if old and stop <= old.stop then return end
    local gate = { stop = stop, spent = empties == 0 and FULL or 0, status = status }
    if empties == 1 and algorithm.promised_after then
      gate.period, gate.count = algorithm.ramp(is_open.rule)
      gate.spent = math.min(time(gate, algorithm.promised_after(is_open, stop - 1)), EXACT - 1)
    end
    -- Permits that were granted for instants after the later end keep their slots.
    if old then gate.spent = math.max(old.spent - (stop - old.stop) * 1000, gate.spent) end
    gate = open(algorithm, gate, now, is_open.rule)
    if not gate then return end
    is_open.gate, state.has_new_gate = gate, true
  end
  publish(state.key, span, status)
end
return {
  pack = pack, ends = ends, replace = replace, read = read, earliest = earliest, take = take, refund = refund, level = level,
  publish = publish, pause = pause,
}
end
