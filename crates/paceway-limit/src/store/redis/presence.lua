-- Enters the heartbeat of a gateway. KEYS[1]: the set of gateways, ordered by the time in ms of their last heartbeats. A
-- gateway that has granted nothing lately is in it with a `-` before its id: it is gone when it is absent and no client
-- listens on the channel of its id, because its process has ended.
-- ARGV: the gateway's id; the ms without a heartbeat after which a gateway is absent, and after which it is gone; 1 if it
-- decides alone, which is entered as a heartbeat that is just too old; 1 if it has granted nothing lately; 1 if it is its
-- first heartbeat, which removes earlier lives of the gateway: the part of the id from `@` on names it; the first part of the
-- names of channels.
-- Returns how many gateways are not gone, the server's clock, how many of the other gateways are absent, and 1 if this
-- gateway was not in the set before.
local set, id, idle = KEYS[1], ARGV[1], ARGV[5] == '1'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The clock may have been set back: the heartbeats of gateways that have died since would count until it is there again.
for _, other in ipairs(redis.call('ZRANGEBYSCORE', set, string.format('%.0f', now + 1000), '+inf')) do
  redis.call('ZADD', set, string.format('%.0f', now), other)
end
local present, alone = now - ARGV[2], ARGV[4] == '1' and not idle
local own, before = id, '-' .. id
if idle then own, before = before, own end
local entered = redis.call('ZADD', set, string.format('%.0f', alone and present or now), own)
if redis.call('ZREM', set, before) == 1 then entered = 0 end
redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now - ARGV[3]))
redis.call('PEXPIRE', set, ARGV[3])
local name = ARGV[6] == '1' and string.match(id, '@.*')
if name then
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', '+inf')) do
    if other ~= own and string.match(other, '@.*') == name then redis.call('ZREM', set, other) end
  end
end
local absent = 0
for _, other in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.0f', present))) do
  -- Without the right to publish, an error is no 0.
  if string.sub(other, 1, 1) == '-' and redis.pcall('PUBLISH', ARGV[7] .. string.sub(other, 2), '0') == 0 then
    redis.call('ZREM', set, other)
  elseif other ~= own then
    absent = absent + 1
  end
end
return { redis.call('ZCARD', set), tonumber(time[1]), tonumber(time[2]), absent, entered }
