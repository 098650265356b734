-- The numbers of a reply, as entries.lua lists them, and the texts among them. There is room for the numbers of one entry at
-- once: a table that grows number by number is copied again and again.
local reply, texts = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, nil

local function push(a, b)
  reply[#reply + 1] = a
  if b then reply[#reply + 1] = b end
end

local function push_part(part)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = part[1], part[2], part[3], part[4], part[5]
end

local function push_decision(code, at, retry_after, bound, remaining, next, reset_after, paused)
  local n = #reply
  if paused > 0 then code = code + 10 end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = code, at, retry_after, bound
  reply[n + 5], reply[n + 6], reply[n + 7] = remaining, next, reset_after
  if paused > 0 then reply[n + 8] = paused end
end

-- The outcome of `decide`.
local function push_decided(wants, at, retry_after, bound, parts, deadline, ask_after)
  if parts and at == 0 and #wants > 1 then
    push_decision(1, at, retry_after, lazy.tightest(wants))
  else
    local code, want = parts and 1 or deadline and 2 or 0, wants[bound]
    push_decision(code, at, retry_after, bound, level_of(want.state, want.enforce))
  end
  if deadline then push(deadline, ask_after) end
  for i = 1, parts and #parts or 0 do push_part(parts[i]) end
end
