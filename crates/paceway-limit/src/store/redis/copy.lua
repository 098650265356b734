-- Reads the states of the limiters of a request as they are kept, and changes nothing.
-- KEYS: the states, and then the order of a queue (fair/stored.lua) if ARGV[1] is 1.
-- Returns the values, nil where there is none, and the instants of the slots of the requests that wait.
local values, slots, states = {}, {}, #KEYS - ARGV[1]
for i = 1, states do values[i] = redis.call('GET', KEYS[i]) end
if KEYS[states + 1] then
  local waiting = redis.call('ZRANGEBYSCORE', KEYS[states + 1], '(0', '+inf', 'WITHSCORES')
  for i = 2, #waiting, 2 do slots[i / 2] = waiting[i] end
end
return { values, slots }
