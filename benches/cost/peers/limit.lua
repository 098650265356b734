-- nginx: one decision of a token bucket in Redis for each request, over a kept-alive cosocket.
local script = [[
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local at = tonumber(state[2]) or now
local tokens = math.min(burst, (tonumber(state[1]) or burst) + math.max(0, now - at) * rate / 1000000)
local allowed = tokens >= 1
if allowed then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
return allowed and 1 or 0
]]

local function bulk(text)
  return "$" .. #text .. "\r\n" .. text .. "\r\n"
end

local digest = ngx.sha1_bin(script):gsub(".", function(c) return string.format("%02x", c:byte()) end)
local by_digest = "*6\r\n" .. bulk("EVALSHA") .. bulk(digest) .. bulk("1")
local by_text = "*6\r\n" .. bulk("EVAL") .. bulk(script) .. bulk("1")
local limit = bulk("1000") .. bulk("1000000000")

local function ask(redis, start, key)
  local _, failed = redis:send({ start, bulk(key), limit })
  if failed then return nil, failed end
  return redis:receive()
end

local M = {}

function M.pass(host, port)
  local redis = ngx.socket.tcp()
  redis:settimeouts(10000, 10000, 10000)
  local connected, why = redis:connect(host, port)
  if not connected then
    ngx.log(ngx.ERR, "redis: ", why)
    return ngx.exit(503)
  end
  local key = "bucket:" .. (ngx.var.http_x_key or "hot")
  local answer, failed = ask(redis, by_digest, key)
  if answer and answer:find("NOSCRIPT", 1, true) then
    answer, failed = ask(redis, by_text, key)
  end
  if answer ~= ":1" and answer ~= ":0" then
    ngx.log(ngx.ERR, "redis: ", failed or answer)
    return ngx.exit(503)
  end
  redis:setkeepalive(60000, 128)
  if answer == ":0" then return ngx.exit(429) end
end

return M
