-- Bounds, integer arithmetic and lifetimes that all rules share. Lua 5.1 numbers are doubles, exact below
-- 2^53.

local VERSION, MAX_HOLES, MAX_BUDGET, EXACT = 1, 2048, 3600000000, 9007199254740992
-- The wait that a request without a concurrency permit is advised: the time at which one becomes free is
-- unknown.
local RETRY = 1000000
-- How much longer a state is kept than it matters: a server with a slower clock that takes
-- over after a failover still has it.
local GRACE_MS = 5000

-- The bytes of a stored gate (gate.lua), which are ahead of a state.
local GATE_SIZE = 19

local function clamp(x, far)
  if x > far then return far elseif x < -far then return -far end
  return x
end

local function lifetime(micros)
  local ms = math.ceil(micros / 1000) + GRACE_MS
  -- Lua writes an integer of C faster, and it may have no more than 32 bits.
  return string.format(ms < 2147483648 and '%d' or '%.0f', ms)
end

local function ceil_div(a, b) return math.ceil(a / b) end
