-- The way of a state from and to its key. Behind plain.lua, whose calls need none of it.
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
