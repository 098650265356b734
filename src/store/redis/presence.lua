-- A gateway says that it lives: KEYS[1] the set of those that do, ARGV its id, and after how many ms it no longer does.
-- Returns how many there are, and the server's clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone = string.format('%.0f', now - ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', gone)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { redis.call('ZCARD', KEYS[1]), tonumber(time[1]), tonumber(time[2]) }
