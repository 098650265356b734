-- wrk: sends requests with one of COUNT keys in a header, in random order. All keys have one length, and the number of
-- different requests does not depend on COUNT, as in paths.lua.
function init(args)
  count = tonumber(args[1])
  math.randomseed(1)
  head = "GET " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nX-Key: k"
end

function request()
  local number = math.random(0, 999999)
  return head .. string.format("%06d", number % count) .. "\r\nX-N: " .. number .. "\r\n\r\n"
end
