-- Reads a text that gateways share, and replaces it if it is the expected one.
-- KEYS[1]: the text. ARGV: the ms for which it is kept; the expected text, empty for none; the new one, empty to read only;
-- the SHA-1 of the text that the caller has, empty for none.
-- Returns the text that the key has now, or 1 if it is the one that the caller has, and the server's clock.
local text = redis.call('GET', KEYS[1]) or ''
if ARGV[3] ~= '' and text == ARGV[2] then
  text = ARGV[3]
  redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
elseif text ~= '' and redis.call('PTTL', KEYS[1]) < ARGV[1] / 2 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
local time = redis.call('TIME')
local is_known = ARGV[4] ~= '' and redis.sha1hex(text) == ARGV[4]
return { is_known and 1 or text, tonumber(time[1]), tonumber(time[2]) }
