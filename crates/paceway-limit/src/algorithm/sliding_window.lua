-- Sliding window log with reservations: the rule. Twin of sliding_window.rs, which explains it: same names, same order,
-- same arithmetic. The state and its walks are in sliding_window/state.lua, its key is in sliding_window/stored.lua.

local common, laws, state = require 'common', require 'sliding_window.laws', require 'sliding_window.state'
local stored = require 'sliding_window.stored'

local M = { kind = 83, lease = false, names = 'aux', load = stored.load, save = stored.save, unused = stored.unused }

local max, min, remove = math.max, math.min, table.remove
local MAX_STAMPS = 10000
local free, grained, last_of_all, new_walk = state.free, state.grained, laws.last_of_all, state.new_walk

function M.rule(text, from)
  local count, span, grain = struct.unpack('<ddd', text, from)
  return { count = count, span = span, grain = grain }
end

function M.ramp(rule) return rule.span, rule.count, rule.count end

-- The last entry ahead (from `i` on) that `cost` permits at `at`, numbered from `number` on, would make one
-- too many under `law`.
local function last_broken(open, law, i, at, number, cost)
  local ahead = open.ahead
  local broken, stop, walk = nil, number, new_walk(open)
  while i <= #ahead and ahead[i] < at + law.span do
    stop = stop + ahead[i + 1]
    local last = stop + cost - 1
    if last - law.count >= number or free(open, walk, law, last) > ahead[i] then broken = ahead[i] end
    i = i + 2
  end
  return broken
end

function M.earliest(open, from, cost)
  local rule = open.rule
  local at = grained(rule, open.now + from)
  if open.fresh then return from, at end
  local first = from == 0 and cost == 1
  -- The answer is needed three times: to decide, to take, and for the level.
  if first and open.first_at then
    at = open.first_at
  else
    if at < open.last then at = open.last end
    local ahead, its_laws = open.ahead, open.laws
    local i, number, walk, walks = 1, open.total, new_walk(open), its_laws and {}
    while true do
      while i <= #ahead and ahead[i] <= at do
        number, i = number + ahead[i + 1], i + 2
      end
      local full = free(open, walk, rule, number + cost - 1)
      for l = 1, its_laws and #its_laws or 0 do
        walks[l] = walks[l] or new_walk(open)
        full = max(full, free(open, walks[l], its_laws[l], number + cost - 1))
      end
      if full > at then
        at = full
      else
        local broken = i <= #ahead and last_broken(open, rule, i, at, number, cost)
        for l = 1, its_laws and i <= #ahead and #its_laws or 0 do
          local later = last_broken(open, its_laws[l], i, at, number, cost)
          if later and (not broken or later > broken) then broken = later end
        end
        if not broken then break end
        at = broken
      end
    end
    if first then open.first_at = at end
  end
  return max(from, at - rule.grain + 1 - open.now), at
end

function M.take(open, at, cost)
  local rule = open.rule
  if open.fresh then
    open.fresh, open.born = false, open.now
    open.floor, open.base, open.span, open.most = open.gone_at or 0, open.gone or 0, rule.span, rule.count
    open.closed_count, open.closed_span, open.others, open.laws = rule.count, rule.span, nil, nil
    open.first, open.count, open.written, open.new, open.hint = 0, 0, 0, {}, 0
    open.ahead, open.chunk, open.from, open.to, open.whole = {}, '', 0, 0, true
    open.first_at = nil
    state.find_last(open)
  end
  local _, first = M.earliest(open, 0, 1)
  local closed = first >= at
  open.first_at = nil
  if open.others or open.closed_count ~= rule.count or open.closed_span ~= rule.span then
    laws.use(open)
  end
  state.absorb(open, closed and at or open.now)
  if closed then
    state.push(open, at, cost)
  else
    state.insert_ahead(open, at, cost)
    state.absorb(open, open.now)
  end
  state.prune(open, min(open.most, MAX_STAMPS) + 2 + common.MAX_HOLES)
  return at, 0, open.born, 0
end

function M.refund(open, at, _, born, _, cost)
  if open.fresh or born ~= open.born then return false end
  local ahead, now, span = open.ahead, open.now, max(open.rule.span, open.span)
  open.first_at, open.refunded = nil, min(open.refunded or at, at)
  for i = 1, #ahead, 2 do
    if ahead[i] == at and ahead[i + 1] >= cost then
      ahead[i + 1] = ahead[i + 1] - cost
      if ahead[i + 1] == 0 then
        remove(ahead, i)
        remove(ahead, i)
      end
      local popped = state.pop_while(open, function(last) return last > now and last > at - span end)
      for j = 1, #popped, 2 do state.insert_ahead(open, popped[j], popped[j + 1]) end
      open.fresh = state.is_past(open)
      return true
    end
  end
  local popped = state.pop_while(open, function(last) return last >= at or (last > now and last > at - span) end)
  local found = false
  for i = 1, #popped, 2 do
    if popped[i] == at and popped[i + 1] >= cost then
      popped[i + 1], found = popped[i + 1] - cost, true
      break
    end
  end
  local rest = {}
  for i = #popped - 1, 1, -2 do
    if popped[i + 1] > 0 then
      if not found or popped[i] <= now then
        state.push(open, popped[i], popped[i + 1])
      else
        rest[#rest + 1] = popped[i]
        rest[#rest + 1] = popped[i + 1]
      end
    end
  end
  if #rest > 0 then
    for i = 1, #ahead do rest[#rest + 1] = ahead[i] end
    open.ahead = rest
    state.absorb(open, now)
  end
  open.fresh = state.is_past(open)
  return found
end

function M.promised_after(open, at)
  if open.fresh then return 0 end
  local number = open.total
  for i = 2, #open.ahead, 2 do number = number + open.ahead[i] end
  return number - state.first_after(open, at)
end

local function remaining(open)
  local rule = open.rule
  if open.fresh then return rule.count end
  local at = grained(rule, open.now)
  if open.last > at then return 0 end
  local ahead, its_laws = open.ahead, open.laws
  local start, come = open.total, 1
  while come <= #ahead and ahead[come] <= at do
    start, come = start + ahead[come + 1], come + 2
  end
  local least = nil
  for l = 0, its_laws and #its_laws or 0 do
    local law = l == 0 and rule or its_laws[l]
    local stop, room, i = start, state.room_under(open, law, at - law.span) - start, come
    while i <= #ahead and ahead[i] < at + law.span do
      stop = stop + ahead[i + 1]
      room = min(room, state.room_under(open, law, ahead[i] - law.span) - stop)
      i = i + 2
    end
    if not least or room < least then least = room end
  end
  return max(least, 0)
end

-- The permits of a waiting request may be what leaves no room for it earlier, and none for others before its slot.
function M.is_taken_after(open)
  return not open.fresh and last_of_all(open) > max(open.now, open.refunded or 0)
end

-- remaining, next, reset_after
function M.level(open)
  local reset_after = 0
  if not open.fresh then reset_after = max(last_of_all(open) + open.rule.span - open.now, 0) end
  local next = M.earliest(open, 0, 1)
  return remaining(open), next, reset_after
end

return M
