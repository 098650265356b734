-- wrk: one of so many paths, in random order.
function init(args)
  count = tonumber(args[1])
  math.randomseed(1)
  tail = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n\r\n"
end

function request()
  return "GET /v1/r" .. math.random(0, count - 1) .. tail
end
