-- The way of a state from and to its key. Behind plain.lua, whose calls need none of it.
-- The answer of a command on a key; nil where the key holds a value of another type.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- Whether a state that was born then, or is absent (nil), is lost: what is written behind a loss is opened behind it,
-- and is born then.
local function is_lost(born) return lost > 0 and (not born or born < lost) end

-- Leaves a key as if nobody had used it. Behind a loss an absent state is one that is lost, for as long as that matters:
-- until then one stays that says that it is not. Whether there is a state now, or was.
local function vacate(algorithm, key, now, rule, horizon)
  local gone = redis.call('DEL', key) == 1
  if lost == 0 then return gone end
  local _, _, left = algorithm.level(algorithm.load(key, now, rule, horizon))
  if left <= 0 then return gone end
  redis.call('SET', key, algorithm.unused(rule, now), 'PX', lifetime(left))
  return true
end

-- The state of an algorithm that keeps all of it in one short string: `read(raw, now, rule)` makes an
-- open state of it, nil of a foreign value; `write(open)` says what to keep and for how many µs it matters;
-- `used_up(rule, now, from, to)` is the string of one that comes into being now and is used up between these instants;
-- `born_at` is where in a string its birth stands.
local function in_one_string(algorithm, used_up, born_at)
  function algorithm.unused(rule, now) return used_up(rule, now, 0, 0) end

  function algorithm.load(key, now, rule, horizon)
    local raw = ask('GET', key)
    if raw == nil then return nil end
    local open = algorithm.read(raw, now, rule)
    if not open then return nil end
    if lost > 0 and is_lost(raw and struct.unpack('<i8', raw, born_at)) then
      open = algorithm.read(used_up(rule, now, lost, lost + horizon), now, rule)
    end
    open.kept, open.horizon = raw, horizon
    return open
  end

  function algorithm.save(open, key)
    local raw, ttl = algorithm.write(open)
    if raw then
      redis.call('SET', key, raw, 'PX', lifetime(ttl))
    elseif open.kept then
      vacate(algorithm, key, open.now, open.rule, open.horizon)
    end
  end
end

-- How each algorithm is made, by its kind: a call makes only those that it uses.
local make = {}
