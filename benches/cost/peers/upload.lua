-- wrk: sends a POST with a body of COUNT bytes.
function init(args)
  wrk.method = "POST"
  wrk.body = string.rep("x", tonumber(args[1]))
  upload = wrk.format()
end

function request()
  return upload
end
