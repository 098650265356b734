if part == 'adjust' then
-- Changes of a level without a request: permits are taken that others used, and permits come back. Twin of `lower` and
-- `charge` in reserve.rs, `refund` in open.rs and `move_up_at` in store/memory/changes.rs.

-- The most grants by which one step lowers a level.
local LOWERINGS = 64

-- Takes permits for now until at most `most` are left of those that can be taken now.
local function lower(state, most)
  local algorithm, open = state.algorithm, state.open
  if algorithm.lease then return end
  local want = { state = state, enforce = true }
  for _ = 1, LOWERINGS do
    want.cost = level_of(state, true) - most
    local start
    -- Permits in several holes are not taken as one grant.
    while not start and want.cost > 0 do
      local at, its_start = earliest_of(want, 0)
      if at <= 0 then start = its_start else want.cost = math.floor(want.cost / 2) end
    end
    if not start then return end
    if open.gate then
      lazy.gates.take(open.gate, algorithm, open, start, want.cost)
    else
      algorithm.take(open, start, want.cost)
    end
    state.dirty = true
  end
end

-- The most instants at which one charge fills windows.
local CHARGES = 16

-- Charges permits that were used already, and returns how many of them the state does not take yet.
local function charge(state, permits)
  local algorithm, open, left = state.algorithm, state.open, permits
  local is_window = algorithm.kind == 83 or algorithm.kind == 70 -- 'S', 'F'
  for i = 0, CHARGES do
    local cost = left
    if left == 0 then break end
    local first = algorithm.earliest(open, 0, is_window and i < CHARGES and 1 or cost)
    if first > MAX_BUDGET then break end
    local at, start = algorithm.earliest(open, 0, cost)
    while at > first do
      cost = floor((cost + 1) / 2)
      at, start = algorithm.earliest(open, 0, cost)
    end
    algorithm.take(open, start, cost)
    left, state.dirty = left - cost, true
  end
  return left
end

-- Refunds the permits of a grant.
local function give_back(state, cost, whole, ticks, born, aux)
  local algorithm, open = state.algorithm, state.open
  local given = algorithm.refund(open, whole, ticks, born, aux, cost)
  if given then state.dirty, state.opened = true, true end
  if open.gate and lazy.gates.refund(open, algorithm, ticks, aux, cost) then state.has_new_gate = true end
  return given
end

-- Gives a request other permits in place of `parts`, within the budget. A gate counts permits, and knows no free ones before
-- others.
local function move_up(wants, budget, parts)
  local given, taken = true, nil
  for w = 1, #wants do
    local state = wants[w].state
    save(state)
    undo(state)
    given = given and not state.open.gate
  end
  for w = 1, #wants do
    local state, part = wants[w].state, parts[w]
    if given and part[1] >= 0 then
      given = state.algorithm.refund(state.open, part[2], part[3], part[4], part[5], wants[w].cost)
    end
  end
  local at, retry_after, bound
  if given then at, retry_after, bound, taken = decide(wants, budget, nil) end
  for w = 1, #wants do
    local state = wants[w].state
    if taken then
      state.dirty, state.opened = true, true
    else
      undo(state)
    end
  end
  if taken then return push_decided(wants, at, retry_after, bound, taken) end
  push_decision(0, 0, 1, 1, level_of(wants[1].state, true))
end

-- Whether slots later than the next one, which comes in `next` µs, are taken, where permits are free before the tail of a line
-- of time.
local function is_taken_after(algorithm, open, next)
  local holes, credit = open.holes, open.credit
  if #holes == 0 and not credit then return false end
  open.holes, open.credit = {}, nil
  local last = algorithm.earliest(open, 0, 1)
  open.holes, open.credit = holes, credit
  return last > next
end

-- Tells all gateways that permits were refunded to a limiter, and when its next slot is free, if requests wait for slots
-- after that one.
local function publish(state)
  local algorithm, open, next = state.algorithm, state.open, nil
  if open.gate then
    next = lazy.gates.earliest(open.gate, algorithm, open, 0, 1)
  else
    next = algorithm.earliest(open, 0, 1)
  end
  local is_taken
  if algorithm.is_taken_after then
    is_taken = algorithm.is_taken_after(open, next)
  else
    is_taken = is_taken_after(algorithm, open, next)
  end
  if is_taken then
    -- In a sliding window the permits of a waiting request may be all that leaves no room for it now.
    if algorithm.kind == 83 then next = 0 end
    redis.pcall('PUBLISH', 'paceway:call:pauses' .. (ARGV[5] or ''), string.format('%s %.0f free', state.key, next))
  end
end
return { lower = lower, charge = charge, give_back = give_back, move_up = move_up, publish = publish }
end
