-- The states of a call: each is read once and written once, however many entries use it.
--
-- A state is a table: its key, algorithm, rule and horizon; the number of its first queue key, 0 without turns; `open`, its open
-- state; and whether it is `dirty` (changed), `has_new_gate`, and whether permits came back to it (`refunded`).
--
-- An algorithm has `load(state)` and `save(state)` of its own, or all of its state is one short string. Then
-- `read(raw, now, rule)` makes an open state of it, nil of a foreign value; `write(open)` returns the string to keep, nil for none, and
-- for how many µs it matters; `used_up(rule, now, from, to)` is the string of a state that is born now and is full between these
-- instants; `born_at` is the position of the birth in a string.

local call, common, gates = require 'call', require 'common', require 'gate'
local M = {}

local redis, max, byte, unpack_from = redis, math.max, string.byte, struct.unpack

local states, used, count = {}, {}, 0

-- Forgets the states of the call before.
function M.begin() states, used, count = {}, {}, 0 end

-- The answer of a command on a key; nil where the key holds a value of another type.
function M.ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- Whether a state that was born at `born`, or is absent (nil), is lost for a limiter with this horizon: one that trusts the
-- store has none. A state that is written after a loss was opened after it, and is born then.
function M.is_lost(born, horizon)
  return call.lost_at > 0 and horizon >= 0 and (not born or born < call.lost_at)
end

-- The open state of a key, nil where its value is foreign.
local function load(state)
  local algorithm, key, rule, horizon = state.algorithm, state.key, state.rule, state.horizon
  if algorithm.load then return algorithm.load(state) end
  local raw, gate = M.ask('GET', key), nil
  if raw == nil then return nil end
  if raw and byte(raw) == 80 then gate, raw = gates.read(algorithm, key, raw, rule) end
  local now, lost_at = call.now, call.lost_at
  local open = algorithm.read(raw, now, rule)
  if not open then return nil end
  if lost_at > 0 and M.is_lost(raw and unpack_from('<i8', raw, algorithm.born_at), horizon) then
    -- It is born at the loss if the clock was set back since.
    local born = max(now, lost_at)
    open = algorithm.read(algorithm.used_up(rule, born, lost_at, lost_at + horizon), now, rule)
  end
  open.exists = raw
  if gate then open.gate = gate end
  return open
end

-- Deletes a state and keeps its `gate`, so that its limiter is unused. After a loss an absent state counts as
-- lost until its horizon ends: until then an unused state is kept that is born after the loss. Returns whether
-- there is a state now, or was.
function M.vacate(state, gate)
  local algorithm, key, rule, now = state.algorithm, state.key, state.rule, call.now
  local gone = redis.call('DEL', key) == 1
  local unused, left = '', 0
  if call.lost_at > 0 and state.horizon >= 0 then
    local _, _, reset_after = algorithm.level(load(state))
    if reset_after > 0 then
      unused = algorithm.unused and algorithm.unused(rule, now) or algorithm.used_up(rule, now, 0, 0)
      left = reset_after
    end
  end
  if gate then left = max(left, gates.ends(gate) - now) end
  if left <= 0 then return gone end
  redis.call('SET', key, (gate and gates.pack(gate) or '') .. unused, 'PX', common.lifetime(left))
  return true
end

-- Writes a state that was changed.
local function store(state)
  local algorithm, open = state.algorithm, state.open
  if algorithm.save then return algorithm.save(state) end
  local raw, ttl = algorithm.write(open)
  local gate = open.gate
  if raw then
    if gate then
      raw, ttl = gates.pack(gate) .. raw, max(ttl, gates.ends(gate) - open.now)
    end
    redis.call('SET', state.key, raw, 'PX', common.lifetime(ttl))
  elseif open.exists or gate then
    M.vacate(state, gate)
  end
end

function M.save(state)
  local gate = state.open.gate
  if state.dirty then store(state) end
  -- A changed state is written with its gate. One that equals an absent one is not written, and a gate can have ended.
  if state.has_new_gate and not (state.dirty and gate) then gates.replace(state.key, gate) end
end

-- Reads a state again, as it is in its key: nothing is left of what was done to it in vain. Returns nil where its value is foreign,
-- and the number of that key if it is not its own.
function M.undo(state)
  local open, foreign = load(state)
  state.open = open or state.open
  state.dirty, state.has_new_gate = false, false
  return open, foreign
end

-- The state of the key with number `k` by the rule of a limiter; nil and the number of a key whose value is foreign. `queue` is the
-- number of the first key of its turns.
function M.open(k, limiter, queue)
  local state = states[k]
  if state then
    state.open.handed_over = nil
    local is_other = state.horizon ~= limiter.horizon
    local has_other_turns = state.algorithm.lease and state.queue ~= queue
    if queue > 0 then state.queue = queue end
    if is_other and call.lost_at > 0 or state.rule ~= limiter.rule or has_other_turns then
      -- While gateways get a new configuration, one call can carry both rules. After a loss the horizon says how full a lost
      -- state is.
      M.save(state)
      state.rule, state.horizon, state.queue = limiter.rule, limiter.horizon, queue
      local open, foreign = M.undo(state)
      if not open then
        states[k] = nil
        return nil, foreign or k
      end
    end
    state.horizon = limiter.horizon
  else
    state = {
      key = call.keys[k], algorithm = limiter.algorithm, rule = limiter.rule, horizon = limiter.horizon, queue = queue,
      open = false, dirty = false, has_new_gate = false, refunded = false,
    }
    local open, foreign = load(state)
    if not open then return nil, foreign or k end
    state.open, count = open, count + 1
    used[count], states[k] = state, state
  end
  return state
end

-- Forgets an opened state, which another step deletes: the decisions that this call made on it are dropped with it.
function M.drop(k)
  local state = states[k]
  if state then state.dirty, state.has_new_gate, state.refunded = false, false, false end
  states[k] = nil
end

-- Writes the states that were changed.
function M.save_all()
  for u = 1, count do
    local state = used[u]
    if state.refunded and not state.algorithm.lease then require('reserve.adjust').publish(state) end
    M.save(state)
  end
end

-- remaining, next, reset_after, paused
function M.level(state, enforce)
  local algorithm, open = state.algorithm, state.open
  local gate, paused = enforce and open.gate, 0
  if gate then
    if not algorithm.lease then return gates.level(gate, algorithm, open) end
    paused = gate.stop - open.now
  end
  local remaining, next, reset_after = algorithm.level(open)
  return remaining, next, reset_after, paused
end

-- `earliest` of the algorithm for a request that wants `cost` permits.
function M.earliest(state, enforce, from, cost)
  local algorithm, open = state.algorithm, state.open
  if open.gate and enforce then return gates.earliest(open.gate, algorithm, open, from, cost) end
  return algorithm.earliest(open, from, cost)
end

-- `take` of the algorithm for a request that enforces.
function M.take(state, start, cost)
  local algorithm, open = state.algorithm, state.open
  state.dirty = true
  if open.gate then return gates.take(open.gate, algorithm, open, start, cost) end
  return algorithm.take(open, start, cost)
end

return M
