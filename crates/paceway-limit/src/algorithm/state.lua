-- Reads a state from its key and writes it back. This file comes after plain.lua, whose calls need none of
-- it.

-- The answer of a command on a key; nil where the key holds a value of another type.
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
end

-- The instant of the last loss for a limiter with this horizon: 0 also for one that trusts the store.
local function loss_of(horizon) return horizon >= 0 and lost_at or 0 end

-- Whether a state that was born at `born`, or is absent (nil), is lost for a limiter with this horizon. A state
-- that is written after a loss was opened after it, and is born then.
local function is_lost(born, horizon)
  local lost = loss_of(horizon)
  return lost > 0 and (not born or born < lost)
end

-- Deletes a state and keeps its `gate`, so that its limiter is unused. After a loss an absent state counts as
-- lost until its horizon ends: until then an unused state is kept that is born after the loss. Returns whether
-- there is a state now, or was.
local function vacate(algorithm, key, now, rule, horizon, gate)
  local gone = redis.call('DEL', key) == 1
  local unused, left = '', 0
  if loss_of(horizon) > 0 then
    local _, _, reset_after = algorithm.level(algorithm.load(key, now, rule, horizon))
    if reset_after > 0 then unused, left = algorithm.unused(rule, now), reset_after end
  end
  if gate then left = math.max(left, gate_ends(gate) - now) end
  if left <= 0 then return gone end
  redis.call('SET', key, pack_gate(gate) .. unused, 'PX', lifetime(left))
  return true
end

-- Gives an algorithm `load` and `save` if all of its state is one short string. `read(raw, now, rule)` makes
-- an open state of it, nil of a foreign value; `write(open)` returns the string to keep and for how many µs
-- it matters; `used_up(rule, now, from, to)` is the string of a state that is born now and is full between
-- these instants (`load` lets it be born at the loss if the clock was set back since); `born_at` is the position of
-- the birth in a string.
local function in_one_string(algorithm, used_up, born_at)
  function algorithm.unused(rule, now) return used_up(rule, now, 0, 0) end

  function algorithm.load(key, now, rule, horizon)
    local value = ask('GET', key)
    if value == nil then return nil end
    local gate, raw = read_gate(algorithm, key, value, now, rule)
    local open = algorithm.read(raw, now, rule)
    if not open then return nil end
    if lost_at > 0 and is_lost(raw and struct.unpack('<i8', raw, born_at), horizon) then
      local born = math.max(now, lost_at)
      open = algorithm.read(used_up(rule, born, lost_at, lost_at + horizon), now, rule)
    end
    open.kept, open.horizon, open.gate = raw, horizon, gate
    return open
  end

  function algorithm.save(open, key)
    local raw, ttl = algorithm.write(open)
    local gate = open.gate
    if raw then
      if gate then raw, ttl = pack_gate(gate) .. raw, math.max(ttl, gate_ends(gate) - open.now) end
      redis.call('SET', key, raw, 'PX', lifetime(ttl))
    elseif open.kept or gate then
      vacate(algorithm, key, open.now, open.rule, open.horizon, gate)
    end
  end
end

-- The constructors of the algorithms by their kind: a call makes only the algorithms that it uses.
local make = {}
