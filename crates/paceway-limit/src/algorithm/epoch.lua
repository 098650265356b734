-- The epoch tells whether the states in Redis are still those that the gateway knows (decision 010). It is `N` or `L` and the instant
-- (µs) at which it was written. After `N` no loss of data is known; with `L`, states from before that instant were lost. A limiter
-- with `on_loss: trust` has no lost states: its horizon h is written as -1 - h.
--
-- The server's clock can be set back, and a promoted replica can have a slower one. A gateway says which instant it has seen last, so
-- a clock that is before that by more than STEP shows itself. From then on the store's clock is ahead of the server's: the epoch has
-- the end `/ahead/since`, both in µs, and every call adds that to the time. The store's clock follows the server's again by a
-- hundredth of the time that passes, so windows of the clock are displaced meanwhile.

local call, common = require 'call', require 'common'
local M = {}

local redis, floor, max = redis, math.floor, math.max
local byte, format, gsub, match, sub = string.byte, string.format, string.gsub, string.match, string.sub
local EPOCH_TTL, STEP, SET_BACK = '34560000000', 1000000, '/(%d+)/(%d+)$'

-- Kind, instant and sign of an epoch; nil for a text that cannot have been written as an epoch before `now`.
local function parse(text, now)
  local kind, at, sign = match((gsub(text, '/%d+/%d+', '')), '^([NL])(%d+)([?+]?)$')
  if not kind or #at > 16 or tonumber(at) > now + common.MAX_BUDGET then return nil end
  return kind, tonumber(at), sign
end

-- The instant on the store's clock of a server whose clock was set back, the epoch, and its end. `seen` is the last instant
-- that the gateway has seen. An epoch that the gateway has read just before (`=`) is on another node: nothing is written.
local function follow(key, epoch, known, clock, seen)
  local now, set_back, is_read = clock, '', sub(known, -1) ~= '='
  local own = match(known, '^[%w/]*')
  local ahead, since = match(is_read and epoch or own, SET_BACK)
  if not ahead then ahead, since = match(own, SET_BACK) end
  if ahead then
    set_back = '/' .. ahead .. '/' .. since
    now = clock + max(ahead - floor(max(clock - since, 0) / 100), 0)
  end
  if is_read and now + STEP < seen then now, set_back = seen, format('/%.0f/%.0f', seen - clock, clock) end
  local began = is_read and epoch and match((gsub(epoch, SET_BACK, '')), '^[NL]%d+$')
  if began and epoch ~= began .. set_back then
    epoch = began .. set_back
    redis.call('SET', key, epoch, 'PX', EPOCH_TTL)
  end
  return now, epoch, set_back
end

-- The epoch that holds from now on, from the one in Redis (false: none) and the one that the gateway knows. A new one has the
-- end `set_back`.
local function judge(key, epoch, known, now, set_back)
  -- Writes a new epoch of `now`, and returns it; further arguments are options of SET.
  local function write(kind, ...)
    local new = kind .. format('%.0f', now) .. set_back
    return redis.call('SET', key, new, 'PX', EPOCH_TTL, ...) and new
  end
  local asked = match(known, '^([%w/]+)=$')
  if asked then return asked end
  local kind, at, own_sign = parse(epoch or '', now)
  local known_kind, known_at, sign = parse(known, now)
  if own_sign ~= '' then
    local first = not epoch and known == '' and write('N', 'NX')
    return first or write('L')
  end
  if known == '' then return epoch end
  if kind == known_kind and at == known_at then
    if sign == '?' then return write('L') end
    if sign == '+' then redis.call('PEXPIRE', key, EPOCH_TTL) end
    return epoch
  end
  -- A later `L` was written by a gateway that found the loss. Any other epoch was written by a gateway that came
  -- first after a loss and did not know of it.
  if kind == 'L' and known_at and at > known_at then return epoch end
  return write('L')
end

-- Sets the instant of the call and of the last loss of data. `instant` is -1 - the last instant of the store's clock that the
-- gateway has seen, or the instant of the call, in tests. `known` is the epoch that the gateway knows, empty where it knows
-- none yet. A sign may follow: `?` when the server may have lost writes since, `+` when the epoch is to live longer, `=` when
-- the gateway has read it just before: then the first key is another one, because the epoch may be on another node.
-- Returns the epoch if the gateway does not know it.
function M.begin(instant, known)
  local key, now, seen, set_back = call.keys[1], tonumber(instant), nil, ''
  if now < 0 then
    local time = redis.call('TIME')
    seen, now = -1 - now, time[1] * 1000000 + time[2]
  end
  -- A value of another type is no epoch.
  local epoch, new = common.ask('GET', key), nil
  if epoch == nil then epoch = '' end
  -- An epoch of a clock that was set back is longer.
  if seen and (now + STEP < seen or epoch and #epoch > 17 or #known > 18) then
    now, epoch, set_back = follow(key, epoch, known, now, seen)
  end
  if epoch ~= known or epoch == '' then
    epoch = judge(key, epoch, known, now, set_back)
    if epoch ~= match(known, '^[%w/]*') then new = epoch end
  end
  call.now, call.lost_at = now, 0
  if byte(epoch) == 76 then call.lost_at = tonumber(match(epoch, '%d+')) end -- 'L'
  return new
end

return M
