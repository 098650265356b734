-- The states of the call, opened with their rules: each is read once and written once per call, however many entries
-- use it.

local made = {}

local function algorithm_of(kind)
  local algorithm = made[kind]
  if not algorithm then
    algorithm = make[kind]()
    made[kind] = algorithm
  end
  return algorithm
end

local states, used = {}, {}

local function save(state)
  local gate = state.open.gate
  if state.dirty then state.algorithm.save(state.open, state.key) end
  -- A changed state is written with its gate. One that equals an absent one is not written, and a gate can have ended.
  if state.has_new_gate and not (state.dirty and gate) then replace_gate(state.key, gate, now) end
end

-- The state of KEYS[k], or nil when its value is foreign.
local function open(k, algorithm, rule, horizon)
  local state = states[k]
  if state == nil then
    local opened = algorithm.load(KEYS[k], now, rule, horizon)
    state = false
    if opened then
      state = { key = KEYS[k], algorithm = algorithm, open = opened, dirty = false, horizon = horizon }
      used[#used + 1] = state
    end
    states[k] = state
    return state or nil
  end
  if state then state.open.handed_over = nil end
  if state and not algorithm.same(state.open.rule, rule) then
    -- While gateways get a new configuration, one call can carry both rules.
    save(state)
    state.open = algorithm.load(state.key, now, rule, horizon)
    state.dirty, state.has_new_gate = false, false
  end
  return state or nil
end

-- remaining, next, reset_after, paused
local function level_of(state, enforce)
  local algorithm, open = state.algorithm, state.open
  local gate = open.gate
  if gate and enforce and not algorithm.lease then return level_behind(gate, algorithm, open) end
  local remaining, next, reset_after = algorithm.level(open)
  return remaining, next, reset_after, gate and enforce and gate.stop - open.now or 0
end

local function level_of_want(want) return level_of(want.state, want.enforce) end

local function earliest_of(want, from)
  local algorithm, open = want.state.algorithm, want.state.open
  if open.gate and want.enforce then return earliest_behind(open.gate, algorithm, open, from, want.cost) end
  return algorithm.earliest(open, from, want.cost)
end
