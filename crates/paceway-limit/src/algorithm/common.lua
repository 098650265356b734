-- Bounds, integer arithmetic and lifetimes that all rules share. Lua 5.1 numbers are doubles, exact below 2^53.

local M = {}

M.VERSION, M.MAX_HOLES, M.MAX_BUDGET, M.EXACT = 1, 2048, 3600000000, 9007199254740992

-- How much longer a state is kept than it matters: a server with a slower clock that takes over after a failover still has it.
M.GRACE_MS = 5000

function M.clamp(x, far)
  if x > far then return far elseif x < -far then return -far end
  return x
end

local redis, ceil, format = redis, math.ceil, string.format

-- The lifetime of a key whose value matters for so many µs, as Redis reads it.
function M.lifetime(micros)
  local ms = ceil(micros / 1000) + M.GRACE_MS
  -- Lua writes an integer of C faster, and it may have no more than 32 bits.
  return format(ms < 2147483648 and '%d' or '%.0f', ms)
end

-- The answer of a command on a key; nil where the key holds a value of another type.
function M.ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- A whole number as Redis reads it.
function M.plain(number) return format('%.0f', number) end

-- Notifies a request that waits. A refused PUBLISH must not end the script after other keys were written: the request asks again
-- by itself.
function M.notify(gateway, number) return redis.pcall('PUBLISH', 'paceway:call:' .. M.plain(gateway), M.plain(number)) end

function M.ceil_div(a, b) return ceil(a / b) end

return M
