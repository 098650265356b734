if part == 'adjust' then
-- Changes of a level without a request: permits are taken that others used, and permits come back. Twin of `lower` and
-- `give_back` in reserve.rs.

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

-- Refunds the permits of a grant.
local function give_back(state, cost, whole, ticks, born, aux)
  local algorithm, open = state.algorithm, state.open
  local given = algorithm.refund(open, whole, ticks, born, aux, cost)
  if given then state.dirty, state.opened = true, true end
  if open.gate and lazy.gates.refund(open, algorithm, ticks, aux, cost) then state.has_new_gate = true end
  return given
end

-- Whether slots later than the next one, which comes in `next` µs, are taken, where a line of time has holes before its tail.
-- After a line was moved back, grants keep their instants and the tail may come before these.
local function is_taken_after(algorithm, open, next)
  local holes = open.holes
  if #holes == 0 then return next > 0 and (open.moved or 0) > 0 end
  open.holes = {}
  local last = algorithm.earliest(open, 0, 1)
  open.holes = holes
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
    redis.pcall('PUBLISH', 'paceway:call:pauses', string.format('%s %.0f free', state.key, next))
  end
end
return { lower = lower, give_back = give_back, publish = publish }
end
