-- The states of the call, opened with their rules: each is read once and written once per call, however many entries
-- use it.

local states, used = {}, {}
-- The classes of requests in names: Lua writes a number as slowly as it makes three functions.
local CLASSES = { '1', '2', '3' }
-- The queues of the call, by their KEYS: nil until one is opened.
local queues

local function save(state)
  local gate = state.open.gate
  if state.dirty then store(state.algorithm, state.open, state.key) end
  -- A changed state is written with its gate. One that equals an absent one is not written, and a gate can have ended.
  if state.has_new_gate and not (state.dirty and gate) then lazy.gates.replace(state.key, gate, now) end
end

-- Reads a state again, as it is in its key: nothing is left of what was done to it in vain.
local function undo(state)
  state.open = load(state.algorithm, state.key, state.open.rule, state.horizon)
  state.dirty, state.has_new_gate = false, false
end

-- The state of KEYS[k], or nil when its value is foreign.
local function open(k, algorithm, rule, horizon)
  local state = states[k]
  if state == nil then
    local opened = load(algorithm, KEYS[k], rule, horizon)
    state = false
    if opened then
      state = { key = KEYS[k], algorithm = algorithm, open = opened, dirty = false, horizon = horizon }
      used[#used + 1] = state
    end
    states[k] = state
    return state or nil
  end
  if not state then return nil end
  state.open.handed_over = nil
  local is_other = state.horizon ~= horizon
  if is_other and lost_at > 0 or not algorithm.same(state.open.rule, rule) then
    -- While gateways get a new configuration, one call can carry both rules. After a loss the horizon says how full a lost
    -- state is.
    save(state)
    state.open = load(algorithm, state.key, rule, horizon)
    state.dirty, state.has_new_gate = false, false
  end
  if is_other then state.horizon, state.open.horizon = horizon, horizon end
  return state
end

-- remaining, next, reset_after, paused
local function level_of(state, enforce)
  local algorithm, open = state.algorithm, state.open
  local gate, paused = enforce and open.gate, 0
  if gate then
    if not algorithm.lease then return lazy.gates.level(gate, algorithm, open) end
    paused = gate.stop - open.now
  end
  local remaining, next, reset_after = algorithm.level(open)
  return remaining, next, reset_after, paused
end

local function earliest_of(want, from)
  local algorithm, open = want.state.algorithm, want.state.open
  if open.gate and want.enforce then return lazy.gates.earliest(open.gate, algorithm, open, from, want.cost) end
  return algorithm.earliest(open, from, want.cost)
end
