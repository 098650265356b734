-- A gateway sends its heartbeat. KEYS[1]: the set of gateways, by the time in ms when each was last heard. ARGV: its id,
-- after how many ms without a heartbeat it is absent, after how many it is gone, and 1 if it decides alone, which is
-- entered as a heartbeat that is just too old.
-- Returns how many are not gone, the server's clock, and how many of the others are absent.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local present, alone = now - ARGV[2], ARGV[4] == '1'
redis.call('ZADD', KEYS[1], string.format('%.0f', alone and present or now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all = redis.call('ZCARD', KEYS[1])
local absent = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', present))
if alone then
  absent = absent - 1
end
return { all, tonumber(time[1]), tonumber(time[2]), absent }
