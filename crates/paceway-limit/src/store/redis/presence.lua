-- Enters the heartbeat of a gateway. KEYS[1]: the set of gateways, ordered by the time in ms of their last heartbeats.
-- ARGV: the gateway's id; the ms without a heartbeat after which a gateway is absent, and after which it is gone; 1 if it
-- decides alone, which is entered as a heartbeat that is just too old.
-- Returns how many gateways are not gone, the server's clock, how many of the other gateways are absent, and 1 if this
-- gateway was not in the set before.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local present, alone = now - ARGV[2], ARGV[4] == '1'
local entered = redis.call('ZADD', KEYS[1], string.format('%.0f', alone and present or now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all = redis.call('ZCARD', KEYS[1])
local absent = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', present))
if alone then
  absent = absent - 1
end
return { all, tonumber(time[1]), tonumber(time[2]), absent, entered }
