-- The plain way for token buckets, and the start of the script: requests that ask one limiter alone, whose state has
-- nothing but grants in a row. Their states are read and written at once, by none of the functions of the long way. Here
-- are the token buckets: any number of requests that ask one of them for the same cost each. A bucket without holes is one
-- instant, so all these requests together are one step of it; block.lua has the step of one with holes. The decisions are
-- those of token_bucket.lua, one after the other. The gateway, which knows the budgets, computes the answers by the same
-- rule from the bucket's state before the step. sliding_window/plain.lua has the windows, block.lua the requests that ask
-- for blocks.
--
--   KEYS[1]     the epoch, or the key that epoch.lua names
--   KEYS[2..]   the states of the n groups, then those of the blocks and of the windows, no key twice, none of which
--               another entry of the call uses
--   ARGV[1]     now in µs (tests bring their own clock), or below 0 for the server's TIME: see epoch.lua
--   ARGV[2]     empty, or n and the numbers of requests for windows and for blocks (2 bytes each), and for groups of one
--               rule and cost in a row: the 26 bytes that a state of the rule begins with; as doubles ticks a µs, ticks of
--               a full bucket, ticks of one request, the longest distance from now in µs, the horizon in µs (how long after
--               a loss of data earlier grants can count: epoch.lua), the number of these groups; and for each of them the
--               number of its requests, their least and greatest budget, and where these differ the budget of each. After
--               all groups the requests for blocks, then those for windows
--   ARGV[3]     the epoch as the gateway knows it: see epoch.lua
--   reply       doubles: now, then for each group admitted, tail, born, before the step; then those of the holes, the
--               blocks and the windows. admitted is -1 where the state is not that plain or foreign: those take the long
--               way, ahead of the other entries. It is -2 - admitted where the state has holes.
--
-- All numbers are little-endian, and integers are in doubles: Lua's numbers are doubles, and eight single
-- bytes take eight times as long. The replies to the entries follow in the same string (entries.lua). When the gateway does not
-- know the epoch, the reply is a list of this string and the epoch.

local now, seen = tonumber(ARGV[1]), nil
if now < 0 then
  local time = redis.call('TIME')
  seen, now = -1 - now, time[1] * 1000000 + time[2]
end

-- The value of a key; for one of another type a text that is no state.
local function value_of(key)
  local raw = redis.pcall('GET', key)
  if type(raw) ~= 'table' or not raw.err then return raw end
  if not string.find(raw.err, 'WRONGTYPE', 1, true) then error(raw.err, 0) end
  return ''
end

local pack, unpack_from, floor, call = struct.pack, struct.unpack, math.floor, redis.call
local plain, groups, windows, blocks, at = ARGV[2], 0, 0, 0, nil
if plain ~= '' then groups, windows, blocks, at = unpack_from('<I2I2I2', plain) end

-- The epoch, the states of the groups and the blocks, and without these that of a first entry with turns (fair/plain.lua).
local epoch, states
local reads, letter = groups + blocks, nil
if reads == 0 then
  letter = string.byte(ARGV[4] or '')
  if letter == 81 or letter == 67 then reads = 1 end -- 'Q', 'C'
end
if reads == 0 then
  epoch = value_of(KEYS[1])
else
  states = redis.pcall('MGET', unpack(KEYS, 1, reads + 1))
  if states.err then
    -- The user may not read many keys at once.
    states = {}
    for k = 1, reads + 1 do states[k] = value_of(KEYS[k]) end
  end
  epoch = states[1]
end
-- An epoch of a clock that was set back is longer. For `=` it is not read, and nothing is written.
if seen and (now + STEP < seen or epoch and #epoch > 17 or #ARGV[3] > 18) then
  local clock, known, is_read = now, string.match(ARGV[3], '^[%w/]*'), string.sub(ARGV[3], -1) ~= '='
  local ahead, since = string.match(is_read and epoch or known, SET_BACK)
  if not ahead then ahead, since = string.match(known, SET_BACK) end
  if ahead then
    set_back = '/' .. ahead .. '/' .. since
    now = clock + math.max(ahead - floor(math.max(clock - since, 0) / 100), 0)
  end
  if is_read and now + STEP < seen then
    now, set_back = seen, string.format('/%.0f/%.0f', seen - clock, clock)
  end
  local began = is_read and epoch and string.match((string.gsub(epoch, SET_BACK, '')), '^[NL]%d+$')
  if began and epoch ~= began .. set_back then
    epoch = began .. set_back
    redis.call('SET', KEYS[1], epoch, 'PX', EPOCH_TTL)
  end
end
if epoch ~= ARGV[3] or epoch == '' then
  epoch = judge(epoch, ARGV[3], now)
  if epoch ~= string.match(ARGV[3], '^[%w/]*') then new_epoch = epoch end
end
if string.byte(epoch) == 76 then lost_at = tonumber(string.match(epoch, '%d+')) end -- 'L'

-- The numbers of the reply, and how many; and the entries of those that take the long way.
local said, n, long = { now, 0, 0, 0, 0, 0, 0, 0 }, 1, nil
-- The groups whose states have holes, how many they are, and how many numbers of the reply the holes can take: the reply is
-- packed by one function, of which Lua allows some 8000 arguments.
local holed, holes_of, room_for_holes = nil, 0, 512

if groups > 0 then
  local head, den, full, length, far, horizon, count, least, greatest, lived, ttl
  local alike = 0
  for k = 1, groups do
    if alike == 0 then
      head, den, full, length, far, horizon, alike, count, least, greatest, at =
        unpack_from('<c26ddddddddd', plain, at)
    else
      count, least, greatest, at = unpack_from('<ddd', plain, at)
    end
    alike = alike - 1
    local lost_at = horizon >= 0 and lost_at or 0
    local budgets = at
    if least < greatest then at = at + 8 * count end

    local raw, tail, born, admitted = states[k + 1], 0, now, 0
    local is_lost = lost_at > 0
    if raw then
      admitted = -1
      local size = #raw
      if size == 58 or size > 58 and size < 1100 and (size - 58) % 16 == 0 then
        local its_head, whole, ticks, since = unpack_from('<c26i8i8i8', raw)
        if its_head == head then
          admitted = 0
          if since >= lost_at then
            is_lost = false
            local ahead = clamp(whole - now, far) * den + ticks
            if ahead > -den then
              tail, born = ahead, since
              if size > 58 then
                room_for_holes = room_for_holes - (size - 50) / 8
                admitted = room_for_holes >= 0 and -2 or -1
              end
            end
          end
        end
      end
    end
    if is_lost then
      local ahead = clamp(lost_at + horizon - now, far) * den
      if ahead > -den then tail = ahead end
      if now < lost_at then born = lost_at end
    end

    if admitted == 0 then
      local room = full - tail
      -- Each request has at least the least budget.
      admitted = floor((least * den + room) / length)
      if admitted >= count then
        admitted = count
      else
        if admitted < 0 then admitted = 0 end
        if least < greatest then
          for i = admitted, count - 1 do
            local budget = unpack_from('<d', plain, budgets + 8 * i)
            if (admitted + 1) * length - room <= budget * den then admitted = admitted + 1 end
          end
        end
      end
      if admitted > 0 then
        local stop = tail + admitted * length
        local whole, ticks = floor(stop / den), stop % den
        local state = pack('<c26i8i8i8i8', head, now + whole, ticks, born, now)
        if ticks > 0 then whole = whole + 2 end
        if whole ~= lived then lived, ttl = whole, lifetime(whole) end
        if raw then
          call('SET', KEYS[k + 1], state, 'PX', ttl)
        elseif not call('SET', KEYS[k + 1], state, 'PX', ttl, 'NX') then
          -- MGET does not show a value of another type.
          admitted = -1
        end
      end
    end

    said[n + 1], said[n + 2], said[n + 3] = admitted, tail, born
    n = n + 3
    if admitted == -2 then
      holed, holes_of = holed or {}, holes_of + 1
      holed[holes_of] = {
        k = k, place = n - 2, head = head, den = den, full = full, length = length, far = far, horizon = horizon,
        count = count, least = least, budgets = least < greatest and budgets,
      }
    elseif admitted < 0 then
      local _, kind, per, _, most = unpack_from('<BBi8i8i8', head)
      for i = 0, count - 1 do
        local budget = least
        if least < greatest then budget = unpack_from('<d', plain, budgets + 8 * i) end
        long = (long or '')
          .. pack('<c1dddddddddd', 'D', budget, 1, k + 1, kind, length / per, 1, horizon, per, den, most)
      end
    end
  end
end
