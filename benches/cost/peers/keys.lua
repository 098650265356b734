-- wrk: a header with one of so many keys, in random order.
function init(args)
  count = tonumber(args[1])
  math.randomseed(1)
  head = "GET " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nX-Key: k"
end

function request()
  return head .. math.random(0, count - 1) .. "\r\n\r\n"
end
