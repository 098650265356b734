-- What the rules share: bounds, integer arithmetic, lifetimes. Lua 5.1 numbers are doubles, exact below 2^53.
local VERSION, MAX_HOLES, MAX_BUDGET, EXACT = 1, 2048, 3600000000, 9007199254740992
-- What a caller is told who finds no place: nobody knows when one will be free.
local RETRY = 1000000
-- After a failover to a server whose clock is behind, the state is still there.
local GRACE_MS = 5000

local function clamp(x, far)
  if x > far then return far elseif x < -far then return -far end
  return x
end

local function lifetime(micros)
  local ms = math.ceil(micros / 1000) + GRACE_MS
  -- An integer of C is written faster, and may have no more than 32 bits.
  return string.format(ms < 2147483648 and '%d' or '%.0f', ms)
end

local function ceil_div(a, b) return math.ceil(a / b) end
