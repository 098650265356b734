-- The states of a call: each is read once and written once, however many entries use it.
--
-- A state is a table: its key, algorithm, rule and horizon; the number of its first queue key, 0 without turns; `floors`, the permits
-- that are kept back from each class, nil if none are; `open`, its open state; and whether it is `dirty` (changed), `has_new_gate`, and
-- whether permits came back to it (`refunded`).
--
-- An algorithm has `load(state)` and `save(state)` of its own, or all of its state is one string, of which the first `piece` bytes are
-- enough to begin with. Then `read(raw, now, rule, key, skip)` makes an open state of it, nil of a foreign value; `lasts(open)` says
-- for how many µs it matters, at most 0 if it equals an absent one; `write(open, lasts, gate)` returns the string to keep, nil if it
-- has changed the one in the key; `used_up(rule, now, from, to)` is the string of a state that is born now and is full between these
-- instants, unused if those are 0; `born_at` is the position of the birth in a string. `level(open)` returns remaining, next and
-- reset_after; the other functions are those of `OpenRate` in rate_rule.rs.

local call, common, gates = require 'call', require 'common', require 'gate'
local M = {}

local redis, max, byte, unpack_from = redis, math.max, string.byte, struct.unpack

local states, used, count = {}, {}, 0

function M.begin() states, used, count = {}, {}, 0 end

-- Whether a state that was born at `born`, or is absent (nil), is lost for a limiter with this horizon: one that trusts the
-- store has none. A state that is written after a loss was opened after it, and is born then.
function M.is_lost(born, horizon)
  return call.lost_at > 0 and horizon >= 0 and (not born or born < call.lost_at)
end

-- The open state of a key, nil where its value is foreign.
local function load(state)
  local algorithm, key, rule, horizon = state.algorithm, state.key, state.rule, state.horizon
  if algorithm.load then return algorithm.load(state) end
  local piece, skip = algorithm.piece, 0
  local raw, gate
  if piece then raw = common.ask('GETRANGE', key, 0, gates.SIZE + piece - 1) else raw = common.ask('GET', key) end
  if raw == nil then return nil end
  if raw then
    if byte(raw) == gates.LETTER then
      local size = gates.size(raw)
      if piece and size > gates.SIZE then raw = common.ask('GETRANGE', key, 0, size + piece - 1) end
      gate, raw, skip = gates.read(algorithm, key, raw, rule)
    end
  end
  -- An absent string has empty pieces.
  if piece and raw == '' then raw = false end
  if rule.bounds and not gate then gate = gates.guess(algorithm, rule) end
  local now, lost_at = call.now, call.lost_at
  local open = algorithm.read(raw, now, rule, key, skip)
  if not open then return nil end
  if lost_at > 0 and M.is_lost(raw and unpack_from('<i8', raw, algorithm.born_at), horizon) then
    -- It is born at the loss if the clock was set back since.
    local born = max(now, lost_at)
    open = algorithm.read(algorithm.used_up(rule, born, lost_at, lost_at + horizon), now, rule, key, skip)
    -- The key does not hold it, not even a part.
    open.whole = true
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
      unused, left = algorithm.used_up(rule, now, 0, 0), reset_after
    end
  end
  if gate then left = max(left, gates.ends(gate) - now) end
  if left <= 0 then return gone end
  redis.call('SET', key, (gate and gates.pack(gate) or '') .. unused, 'PX', common.lifetime(left))
  return true
end

local function store(state)
  local algorithm, open = state.algorithm, state.open
  if algorithm.save then return algorithm.save(state) end
  local lasts, gate, before = algorithm.lasts(open), open.gate, ''
  if lasts <= 0 then
    if open.exists or gate then M.vacate(state, gate) end
    return
  end
  if gate then lasts, before = max(lasts, gates.ends(gate) - open.now), gates.pack(gate) end
  local raw = algorithm.write(open, lasts, before)
  if raw then redis.call('SET', state.key, gate and before .. raw or raw, 'PX', common.lifetime(lasts)) end
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
    state.open.handed_over, state.floors = nil, limiter.floors
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
      floors = limiter.floors, open = false, dirty = false,
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

function M.save_all()
  for u = 1, count do
    local state = used[u]
    if state.refunded and not state.algorithm.lease then require('reserve.adjust').publish(state) end
    M.save(state)
  end
end

-- remaining, next, reset_after, paused, and of a gate: the working rate if there is one, since, status
function M.level(state, enforce)
  local algorithm, open = state.algorithm, state.open
  local gate, paused, status = enforce and open.gate, 0, 0
  if gate then
    if not algorithm.lease then return gates.level(gate, algorithm, open) end
    paused, status = gate.stop - open.now, gate.status
  end
  local remaining, next, reset_after = algorithm.level(open)
  return remaining, next, reset_after, paused, nil, 0, status
end

function M.earliest(state, enforce, from, cost, kept)
  local algorithm, open = state.algorithm, state.open
  if open.gate and enforce then return gates.earliest(open.gate, algorithm, open, from, cost, kept) end
  return algorithm.earliest(open, from, cost, kept)
end

-- `take` of the algorithm for a request that enforces.
function M.take(state, start, cost, at)
  local algorithm, open = state.algorithm, state.open
  state.dirty = true
  if open.gate then return gates.take(open.gate, algorithm, open, start, cost, at) end
  return algorithm.take(open, start, cost)
end

-- Takes permits for a request that waits for them, and returns the grant as a queue keeps it.
function M.take_ahead(state, start, cost, wait, kept)
  local grant = struct.pack('<dddd', M.take(state, start, cost, wait))
  if state.algorithm.promise then state.algorithm.promise(state.open, wait, start, kept) end
  return grant
end

return M
