-- What the rules share: bounds, integer arithmetic, and the way a state takes to and from its key. Lua 5.1
-- numbers are doubles, exact below 2^53.
local VERSION, MAX_HOLES, MAX_BUDGET, EXACT = 1, 2048, 3600000000, 9007199254740992
-- What a caller is told who finds no place: nobody knows when one will be free.
local RETRY = 1000000
-- After a failover to a server whose clock is behind, the state is still there.
local GRACE_MS = 5000

local function ceil_div(a, b) return math.ceil(a / b) end

local function clamp(x, far)
  if x > far then return far elseif x < -far then return -far end
  return x
end

local function lifetime(micros)
  local ms = math.ceil(micros / 1000) + GRACE_MS
  -- An integer of C is written faster, and may have no more than 32 bits.
  return string.format(ms < 2147483648 and '%d' or '%.0f', ms)
end

-- The answer of a command on a key; nil where the key holds a value of another type.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- The state of an algorithm that keeps all of it in one short string: `read(raw, now, rule)` makes an
-- open state of it, nil of a foreign value; `write(open)` says what to keep and for how many µs it matters.
local function in_one_string(algorithm)
  function algorithm.load(key, now, rule)
    local raw = ask('GET', key)
    if raw == nil then return nil end
    local open = algorithm.read(raw, now, rule)
    if open then open.kept = raw end
    return open
  end

  function algorithm.save(open, key)
    local raw, ttl = algorithm.write(open)
    if raw then
      redis.call('SET', key, raw, 'PX', lifetime(ttl))
    elseif open.kept then
      redis.call('DEL', key)
    end
  end
end

-- How each algorithm is made, by its kind: a call makes only those that it uses.
local make = {}
