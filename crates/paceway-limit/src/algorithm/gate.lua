-- The gate of a paused limiter. Twin of gate.rs, which explains it. An open gate has the fields of the twin and of its ramp, but `stop`
-- for `until`.
--
-- A stored gate is ahead of the stored state: `P`, stop, spent (8 bytes each), status (2 bytes), little-endian. The state is empty
-- where the limiter is unused. `spent` is below 0 where the bucket holds more than one permit at `stop`. A concurrency limiter keeps
-- its gate as a member of its sorted set.

local call, common = require 'call', require 'common'
local M = {}

local redis, ceil, floor, max, min = redis, math.ceil, math.floor, math.max, math.min
local EXACT, MAX_BUDGET, byte, format = common.EXACT, common.MAX_BUDGET, string.byte, string.format
local GATE, FULL = '<c1i8i8I2', 1 - EXACT

-- The bytes of a stored gate, which are ahead of a state.
M.SIZE = 19

-- The gate of a stored value, nil if it has none; and the state, false if it is absent.
local function split(raw)
  if not raw or #raw < M.SIZE or byte(raw) ~= 80 then return nil, raw end
  local _, stop, spent, status = struct.unpack(GATE, raw)
  if stop < 0 or stop >= EXACT or spent < FULL or spent >= EXACT then return nil, raw end
  return { stop = stop, spent = spent, status = status }, #raw > M.SIZE and string.sub(raw, M.SIZE + 1)
end

function M.pack(gate)
  return gate and struct.pack(GATE, 'P', gate.stop, gate.spent, gate.status) or ''
end

local function time(gate, permits)
  return ceil(permits * gate.period * 1000 / gate.count)
end

local function time_of_all(gate, permits)
  return max(ceil((gate.spent + time(gate, permits)) / 1000), 0)
end

function M.ends(gate) return gate.stop + time_of_all(gate, gate.most - 1) end

local function open_by(algorithm, gate, rule)
  gate.now = call.now
  gate.period, gate.count, gate.most = 0, 1, 1
  if algorithm.ramp then gate.period, gate.count, gate.most = algorithm.ramp(rule) end
  return M.ends(gate) > call.now and gate or nil
end

-- Replaces the gate of a stored value, or removes it. The state stays as it is.
function M.replace(key, gate)
  local _, raw = split(redis.call('GET', key))
  if not raw and not gate then return redis.call('DEL', key) end
  local left = raw and max(redis.call('PTTL', key) - common.GRACE_MS, 0) or 0
  if gate then left = max(left, ceil((M.ends(gate) - call.now) / 1000)) end
  redis.call('SET', key, M.pack(gate) .. (raw or ''), 'PX', common.lifetime(left * 1000))
end

-- The gate and the state of a value that was read. A gate that has ended is removed.
function M.read(algorithm, key, value, rule)
  local gate, raw = split(value)
  if not gate then return nil, value end
  gate = open_by(algorithm, gate, rule)
  if not gate then M.replace(key, nil) end
  return gate, raw
end

function M.earliest(gate, algorithm, open, from, cost)
  local at = max(gate.stop + time_of_all(gate, cost - 1) - gate.now, from)
  local earliest, start = algorithm.earliest(open, min(at, MAX_BUDGET), cost)
  return max(earliest, at), start
end

function M.take(gate, algorithm, open, start, cost)
  local whole, ticks, born, aux = algorithm.take(open, start, cost)
  gate.spent = min(gate.spent + time(gate, cost), EXACT - 1)
  if algorithm.names == 'aux' then aux = gate.stop end
  if algorithm.names == 'ticks' then ticks = gate.stop end
  return whole, ticks, born, aux
end

-- Returns the permits of a grant to the gate; false if they were not taken through it. The gate can end by that: then
-- later entries of the call meet none, and their grants do not name it.
function M.refund(open, algorithm, ticks, aux, cost)
  local gate = open.gate
  local name = algorithm.names == 'aux' and aux or algorithm.names == 'ticks' and ticks
  if name ~= gate.stop then return false end
  gate.spent = max(gate.spent - time(gate, cost), gate.spent < 0 and FULL or 0)
  if M.ends(gate) <= gate.now then open.gate = nil end
  return true
end

function M.level(gate, algorithm, open)
  local remaining, _, reset_after = algorithm.level(open)
  local room = 0
  if gate.now >= gate.stop then
    room = (gate.now - gate.stop) * 1000 - gate.spent
    room = max(floor(room * gate.count / (gate.period * 1000)) + 1, 0)
  end
  local next = M.earliest(gate, algorithm, open, 0, 1)
  return min(remaining, room), next, max(reset_after, M.ends(gate) - gate.now), max(gate.stop - gate.now, 0)
end

-- Tells all gateways that a limiter is paused for `left` µs, or that its next slot is `free` then. A refused PUBLISH must not end the
-- script after other keys were written: the gateways learn it from the next decision.
function M.publish(key, left, status)
  redis.pcall('PUBLISH', 'paceway:call:pauses' .. call.database, format('%s %.0f %s', key, left, status))
end

-- Pauses a limiter for `span` µs. One that does not empty the limiter (0) says nothing about its level.
function M.pause(state, span, status, empties)
  local algorithm, is_open, stop = state.algorithm, state.open, call.now + span
  if algorithm.pause then
    if not algorithm.pause(state, stop, status) then return end
    state.dirty = true
  else
    local old = is_open.gate
    if old and stop <= old.stop then return end
    local gate = { stop = stop, spent = empties == 0 and FULL or 0, status = status }
    if empties == 1 and algorithm.promised_after then
      gate.period, gate.count = algorithm.ramp(is_open.rule)
      gate.spent = min(time(gate, algorithm.promised_after(is_open, stop - 1)), EXACT - 1)
    end
    if old then gate.spent = max(old.spent - (stop - old.stop) * 1000, gate.spent) end
    gate = open_by(algorithm, gate, is_open.rule)
    if not gate then return end
    is_open.gate, state.has_new_gate = gate, true
  end
  M.publish(state.key, span, status)
end

return M
