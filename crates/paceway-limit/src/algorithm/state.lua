-- Reads a state from its key and writes it back.

-- The answer of a command on a key; nil where the key holds a value of another type.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- Whether a state that was born at `born`, or is absent (nil), is lost for a limiter with this horizon: one that trusts the
-- store has none. A state that is written after a loss was opened after it, and is born then.
local function is_lost(born, horizon)
  return lost_at > 0 and horizon >= 0 and (not born or born < lost_at)
end

-- The open state of a key, nil where its value is foreign. An algorithm has `load` and `save` of its own, or all of its state
-- is one short string. Then `read(raw, now, rule)` makes an open state of it, nil of a foreign value; `write(open)` returns the
-- string to keep, nil for none, and for how many µs it matters; `used_up(rule, now, from, to)` is the string of a state that is
-- born now and is full between these instants (it is born at the loss if the clock was set back since); `born_at` is the
-- position of the birth in a string.
local function load(algorithm, key, rule, horizon)
  if algorithm.load then return algorithm.load(key, now, rule, horizon) end
  local raw, gate = ask('GET', key), nil
  if raw == nil then return nil end
  if raw and string.byte(raw) == 80 then gate, raw = lazy.gates.read(algorithm, key, raw, now, rule) end
  local open = algorithm.read(raw, now, rule)
  if not open then return nil end
  if lost_at > 0 and is_lost(raw and unpack_from('<i8', raw, algorithm.born_at), horizon) then
    local born = math.max(now, lost_at)
    open = algorithm.read(algorithm.used_up(rule, born, lost_at, lost_at + horizon), now, rule)
  end
  open.kept, open.horizon = raw, horizon
  if gate then open.gate = gate end
  return open
end

-- Writes a state that was changed.
local function store(algorithm, open, key)
  if algorithm.save then return algorithm.save(open, key) end
  local raw, ttl = algorithm.write(open)
  local gate = open.gate
  if raw then
    if gate then
      raw, ttl = lazy.gates.pack(gate) .. raw, math.max(ttl, lazy.gates.ends(gate) - open.now)
    end
    call('SET', key, raw, 'PX', lifetime(ttl))
  elseif open.kept or gate then
    lazy.vacate(algorithm, key, open.now, open.rule, open.horizon, gate)
  end
end
