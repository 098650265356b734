-- The epoch tells whether the states in Redis are still those that the gateway knows. It is `N` or `L` and
-- the instant (µs) at which it was written. After `N` no loss of data is known; with `L`, states from before
-- that instant were lost. A lost state counts as full until the end of its horizon, so that no grant is made
-- twice. A limiter with `on_loss: trust` has no lost states: its horizon h is written as -1 - h.
--
-- The server's clock can be set back, and a promoted replica can have a slower one. States would believe the instants of the
-- old clock, and limiters would refuse for as long as it was set back. A gateway says which instant it has seen last, so a
-- clock that is before that by more than STEP shows itself. From then on the store's clock is ahead of the server's: the epoch
-- has the end `/ahead/since`, both in µs, and every call adds that to the time. Nothing is granted twice, because the
-- time between the last look and the step is not counted. The store's clock follows the server's again by a hundredth of
-- the time that passes, so windows of the clock are displaced meanwhile.
--
--   KEYS[1]  the epoch
--   ARGV[1]  -1 - the last instant of the store's clock that the gateway has seen; or the instant of the call, in tests
--   ARGV[3]  the epoch that the gateway knows; empty where it knows none yet. A sign may follow: `?` when the server
--            may have lost writes since, `+` when the epoch is to live longer, `=` when the gateway has read it just
--            before. Then KEYS[1] is another key, because the epoch may be on another node.

local EPOCH_TTL, STEP, SET_BACK = '34560000000', 1000000, '/(%d+)/(%d+)$'

-- The instant of the last loss of data, 0 if none is known; and the epoch, if the gateway does not know it.
local lost_at, new_epoch = 0, nil
-- The end of the epoch of a server whose clock was set back.
local set_back = ''

-- The epoch that holds from now on, from the one in Redis (false: none) and the one that the gateway knows.
local function judge(epoch, known, now)
  -- Kind, instant and sign of an epoch; nil for a text that cannot have been written as an epoch before `now`.
  local function parse(text)
    local kind, at, sign = string.match((string.gsub(text, '/%d+/%d+', '')), '^([NL])(%d+)([?+]?)$')
    if not kind or #at > 16 or tonumber(at) > now + MAX_BUDGET then return nil end
    return kind, tonumber(at), sign
  end
  -- Writes a new epoch of `now`, and returns it; further arguments are options of SET.
  local function write(kind, ...)
    local new = kind .. string.format('%.0f', now) .. set_back
    return redis.call('SET', KEYS[1], new, 'PX', EPOCH_TTL, ...) and new
  end

  local asked = string.match(known, '^([%w/]+)=$')
  if asked then return asked end
  local kind, at, own_sign = parse(epoch or '')
  local known_kind, known_at, sign = parse(known)
  if own_sign ~= '' then
    -- A value of another type is not seen by MGET; the write meets it.
    local first = not epoch and known == '' and write('N', 'NX')
    return first or write('L')
  end
  if known == '' then return epoch end
  if kind == known_kind and at == known_at then
    if sign == '?' then return write('L') end
    if sign == '+' then redis.call('PEXPIRE', KEYS[1], EPOCH_TTL) end
    return epoch
  end
  -- A later `L` was written by a gateway that found the loss. Any other epoch was written by a gateway that came
  -- first after a loss and did not know of it.
  if kind == 'L' and known_at and at > known_at then return epoch end
  return write('L')
end
