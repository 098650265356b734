-- The reply of a call: the integers of all entries as doubles in one string, as `wire.rs` lists them, and texts. With texts or a
-- new epoch the reply is a list of this string, the texts, and the epoch.

local reserve, states, wire = require 'reserve', require 'state', require 'wire'
local M = {}

local pack, rep, unpack = struct.pack, string.rep, unpack
local FOREIGN, GATED = wire.FOREIGN, wire.GATED
-- Lua passes a few thousand arguments at most.
local MOST = 1000

local numbers, n, texts = {}, 0, nil
-- The forms of replies by their lengths, of the usual ones.
local forms, USUAL = {}, 128

function M.begin(now)
  n, texts = 1, nil
  numbers[1] = now
end

function M.push(number)
  n = n + 1
  numbers[n] = number
end

function M.push_pair(a, b)
  numbers[n + 1], numbers[n + 2] = a, b
  n = n + 2
end

-- KEYS[k] holds a value that this version did not write.
function M.push_foreign(k) M.push_pair(FOREIGN, k) end

function M.push_text(text)
  texts = texts or {}
  texts[#texts + 1] = text
end

function M.push_part(part)
  numbers[n + 1], numbers[n + 2], numbers[n + 3], numbers[n + 4], numbers[n + 5] = part[1], part[2], part[3], part[4], part[5]
  n = n + 5
end

local function push_gate(paused, rate, since, status)
  M.push_pair(paused, rate or 0)
  M.push_pair(since, status)
end

function M.push_level(code, remaining, next, reset_after, paused, rate, since, status)
  numbers[n + 1], numbers[n + 2], numbers[n + 3], numbers[n + 4] = code, remaining, next, reset_after
  n = n + 4
  if paused > 0 or rate then
    numbers[n - 3] = code + GATED
    push_gate(paused, rate, since, status)
  end
end

-- Returns where the wait until the next try is, which may be replaced.
function M.push_decision(code, at, retry_after, bound, remaining, next, reset_after, paused, rate, since, status)
  local first = n + 1
  local gated = paused > 0 or rate
  if gated then code = code + GATED end
  numbers[n + 1], numbers[n + 2], numbers[n + 3], numbers[n + 4] = code, at, retry_after, bound
  numbers[n + 5], numbers[n + 6], numbers[n + 7] = remaining, next, reset_after
  n = n + 7
  if gated then push_gate(paused, rate, since, status) end
  return first + 2
end

function M.push_decided(wants, at, retry_after, bound, parts, deadline, ask_after)
  local place
  if parts and at == 0 and #wants > 1 then
    place = M.push_decision(1, at, retry_after, reserve.tightest(wants))
  else
    local code, want = parts and 1 or deadline and 2 or 0, wants[bound]
    place = M.push_decision(code, at, retry_after, bound, states.level(want.state, want.enforce))
  end
  if deadline then M.push_pair(deadline, ask_after) end
  for i = 1, parts and #parts or 0 do M.push_part(parts[i]) end
  return place
end

function M.replace(place, number) numbers[place] = number end

-- The reply, with the epoch if the gateway does not know it.
function M.finish(new_epoch)
  local told, last = '', n
  for first = n - (n - 1) % MOST, 1, -MOST do
    local count = last - first + 1
    local form = forms[count] or '<' .. rep('d', count)
    if n <= USUAL then forms[n] = form end
    told, last = pack(form, unpack(numbers, first, last)) .. told, first - 1
  end
  if n > MOST then numbers = {} end
  if not new_epoch and not texts then return told end
  texts = texts or {}
  table.insert(texts, 1, told)
  texts[#texts + 1] = new_epoch
  return texts
end

return M
