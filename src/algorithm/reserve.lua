-- Executes a batch of entries in order. The only redis.call of the script; `decide` is the twin of
-- reserve.rs.
--
--   KEYS[k]   the states; the keys of one call share a {hash tag}
--   ARGV[1]   now in µs, or -1 for the server's TIME (tests bring their own clock)
--   ARGV[2..] the entries, each one of
--     D budget n, then n times: k kind cost enforce ARGS…    decide; ARGS are the rule's
--     G k kind cost whole ticks born ARGS…                   give a grant back
--     P k kind ARGS…                                         look
--   reply     flat integers, for each entry one of
--     D  1 at bound remaining next reset_after, then n times: at whole ticks born
--        0 at bound remaining next reset_after               refused; nothing is written
--     G  1 given | 0 nothing to give
--     P  1 remaining next reset_after
--     any -1 k                                               KEYS[k] holds a foreign value
--
-- A state is read once and written once per call, however many entries use it.
local algorithms = { [token_bucket.kind] = token_bucket }
-- After a failover to a server whose clock is behind, the state is still there.
local GRACE_MS = 5000

local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local states, used, reply = {}, {}, {}

local function write(state)
  local raw, ttl = state.algorithm.close(state.open)
  if raw then
    redis.call('SET', state.key, raw, 'PX', string.format('%.0f', math.ceil(ttl / 1000) + GRACE_MS))
  elseif state.raw then
    redis.call('DEL', state.key)
  end
  state.raw, state.dirty = raw, false
end

-- the state of KEYS[k], or nil when its value is foreign
local function open(k, algorithm, rule)
  local state = states[k]
  if state == nil then
    local raw = redis.pcall('GET', KEYS[k])
    if type(raw) == 'table' then
      states[k] = false
      return nil
    end
    local opened = algorithm.open(raw, now, rule)
    state = false
    if opened then
      state = { key = KEYS[k], raw = raw, algorithm = algorithm, open = opened, dirty = false }
      used[#used + 1] = state
    end
    states[k] = state
  elseif state and not algorithm.same(state.open.rule, rule) then
    -- Around a change of the configuration one call can carry both rules.
    if state.dirty then write(state) end
    state.open = algorithm.open(state.raw, now, rule)
  end
  return state or nil
end

local function decide(wants, budget)
  if budget > MAX_BUDGET then budget = MAX_BUDGET end
  local at, bound, enforcing = 0, 1, 0
  for _, want in ipairs(wants) do
    if want.enforce then enforcing = enforcing + 1 end
  end
  repeat
    local later = false
    for i, want in ipairs(wants) do
      if want.enforce then
        local state = want.state
        local earliest, start = state.algorithm.earliest(state.open, math.min(at, MAX_BUDGET), want.cost)
        want.start = start
        if earliest > at then at, bound, later = earliest, i, true end
      end
    end
  until not later or enforcing == 1
  if at > budget then return at, bound, nil end
  local parts = {}
  for i, want in ipairs(wants) do
    local state, would, start = want.state, at, want.start
    if not want.enforce then would, start = state.algorithm.earliest(state.open, 0, want.cost) end
    if would > budget then
      parts[i] = { -1, 0, 0, 0 }
    else
      parts[i] = { would, state.algorithm.take(state.open, start, want.cost) }
      state.dirty = true
    end
  end
  return at, bound, parts
end

local function push(...)
  for i = 1, select('#', ...) do reply[#reply + 1] = (select(i, ...)) end
end

local i = 2

local function next_arg()
  i = i + 1
  return ARGV[i - 1]
end

local function next_number() return tonumber(next_arg()) end

-- the state that the rule at ARGV[i] asks for
local function next_state(k, algorithm)
  local rule = algorithm.rule(ARGV, i)
  i = i + algorithm.args
  return open(k, algorithm, rule)
end

while i <= #ARGV do
  local what = next_arg()
  if what == 'D' then
    local budget, n = next_number(), next_number()
    local wants, foreign = {}, nil
    for w = 1, n do
      local k, algorithm = next_number(), algorithms[next_number()]
      local cost, enforce = next_number(), next_arg() == '1'
      local state = next_state(k, algorithm)
      if not state then foreign = foreign or k end
      wants[w] = { state = state, cost = cost, enforce = enforce }
    end
    if foreign then
      push(-1, foreign)
    else
      local at, bound, parts = decide(wants, budget)
      local state = wants[bound].state
      push(parts and 1 or 0, at, bound, state.algorithm.level(state.open))
      for _, part in ipairs(parts or {}) do push(unpack(part)) end
    end
  elseif what == 'G' then
    local k, algorithm = next_number(), algorithms[next_number()]
    local cost, whole, ticks, born = next_number(), next_number(), next_number(), next_number()
    local state = next_state(k, algorithm)
    if not state then
      push(-1, k)
    else
      local given = algorithm.give_back(state.open, whole, ticks, born, cost)
      if given then state.dirty = true end
      push(given and 1 or 0)
    end
  else
    local k, algorithm = next_number(), algorithms[next_number()]
    local state = next_state(k, algorithm)
    if not state then push(-1, k) else push(1, algorithm.level(state.open)) end
  end
end

for _, state in ipairs(used) do
  if state.dirty then write(state) end
end
return reply
