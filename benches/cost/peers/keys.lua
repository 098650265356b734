-- wrk: a header with one of so many keys, in random order. However many there are, as many different requests, as in
-- paths.lua, and keys of one length.
function init(args)
  count = tonumber(args[1])
  math.randomseed(1)
  head = "GET " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\nX-Key: k"
end

function request()
  local number = math.random(0, 999999)
  return head .. string.format("%06d", number % count) .. "\r\nX-N: " .. number .. "\r\n\r\n"
end
