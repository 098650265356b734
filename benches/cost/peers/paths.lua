-- wrk: sends requests for one of COUNT paths of one length, in random order. The number of different requests does not
-- depend on COUNT: a load that makes more of them is slower, and a gateway that waits more spends more on each.
function init(args)
  count = tonumber(args[1])
  math.randomseed(1)
  tail = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n\r\n"
end

function request()
  local number = math.random(0, 999999)
  return "GET /v1/r" .. string.format("%04d", number % count) .. "?n=" .. number .. tail
end
