-- The numbers of a reply, as entries.lua lists them.

local function push(...)
  for i = 1, select('#', ...) do reply[#reply + 1] = (select(i, ...)) end
end

local function push_decision(code, at, retry_after, bound, remaining, next, reset_after, paused)
  push(paused > 0 and code + 10 or code, at, retry_after, bound, remaining, next, reset_after)
  if paused > 0 then push(paused) end
end

-- The outcome of `decide`.
local function push_decided(wants, at, retry_after, bound, parts, deadline, ask_after)
  if #wants > 1 and at == 0 and parts then
    push_decision(1, at, retry_after, tightest(wants))
  else
    local code = parts and 1 or deadline and 2 or 0
    push_decision(code, at, retry_after, bound, level_of_want(wants[bound]))
  end
  if deadline then push(deadline, ask_after) end
  for _, part in ipairs(parts or {}) do push(unpack(part)) end
end

local function push_level(remaining, next, reset_after, paused)
  push(paused > 0 and 11 or 1, remaining, next, reset_after)
  if paused > 0 then push(paused) end
end
