-- Executes once each command that the decision script and the heartbeat execute, on two keys that it deletes at the end.
--   KEYS    two keys of the prefix
--   reply   {} when all of it works, else {command, error}
local function failure(of, keys)
  local tries = {
    { 'TIME' },
    { 'SET', keys[1], 'paceway', 'PX', 60000 },
    { 'SETRANGE', keys[1], 0, 'P' },
    { 'GETRANGE', keys[1], 0, 1 },
    { 'GET', keys[1] },
    { 'PEXPIRE', keys[1], 60000 },
    { 'PTTL', keys[1] },
    { 'ZADD', keys[2], 1, 'a' },
    { 'PEXPIRE', keys[2], 60000 },
    { 'ZCARD', keys[2] },
    { 'ZCOUNT', keys[2], 0, 1 },
    { 'ZSCORE', keys[2], 'a' },
    { 'ZRANGEBYSCORE', keys[2], 0, 1 },
    { 'ZREVRANGEBYSCORE', keys[2], 1, 0 },
    { 'ZREVRANGE', keys[2], 0, 0 },
    { 'ZREM', keys[2], 'a' },
    { 'ZREMRANGEBYSCORE', keys[2], 0, 1 },
    { 'DEL', keys[1] },
    { 'HSET', keys[1], 'a', 1 },
    { 'HGET', keys[1], 'a' },
    { 'HMGET', keys[1], 'a', 'b' },
    { 'HDEL', keys[1], 'a' },
    { 'DEL', keys[1], keys[2] },
  }
  for _, words in ipairs(tries) do
    local said = of(unpack(words))
    if type(said) == 'table' and said.err then return { words[1], said.err } end
  end
  return {}
end
if #struct.pack('<i8', 1) ~= 8 then return { 'struct.pack', 'it packs otherwise' } end
return failure(redis.pcall, KEYS)
