-- The epoch tells whether the states in Redis are still those that the gateway knows. It is `N` or `L` and
-- the instant (µs) at which it was written. After `N` no loss of data is known; with `L`, states from before
-- that instant were lost. A lost state counts as full until the end of its horizon, so that no grant is made
-- twice. A limiter with `on_loss: trust` has no lost states: its horizon h is written as -1 - h.
--
--   KEYS[1]  the epoch
--   ARGV[3]  the epoch that the gateway knows; empty where it knows none yet. A sign may follow: `?` when the server
--            may have lost writes since, `+` when the epoch is to live longer, `=` when the gateway has read it just
--            before. Then KEYS[1] is another key, because the epoch may be on another node.

local EPOCH_TTL = '34560000000'

-- The instant of the last loss of data, 0 if none is known; and the epoch, if the gateway does not know it.
local lost_at, new_epoch = 0, nil

-- The instant of the last loss for a limiter with this horizon: 0 also for one that trusts the store.
local function loss_of(horizon) return horizon >= 0 and lost_at or 0 end

-- Kind, instant and sign of an epoch; nil for a text that cannot have been written as an epoch before `now`.
local function parse_epoch(text, now)
  local kind, at, sign = string.match(text, '^([NL])(%d+)([?+]?)$')
  if not kind or #at > 16 or tonumber(at) > now + MAX_BUDGET then return nil end
  return kind, tonumber(at), sign
end

-- Writes a new epoch of `now`, and returns it; further arguments are options of SET.
local function write_epoch(kind, now, ...)
  local epoch = kind .. string.format('%.0f', now)
  return redis.call('SET', KEYS[1], epoch, 'PX', EPOCH_TTL, ...) and epoch
end

-- The epoch that holds from now on, from the one in Redis (false: none) and the one that the gateway knows.
local function judge(epoch, known, now)
  local asked = string.match(known, '^(%w+)=$')
  if asked then return asked end
  local kind, at, own_sign = parse_epoch(epoch or '', now)
  local known_kind, known_at, sign = parse_epoch(known, now)
  if own_sign ~= '' then
    -- A value of another type is not seen by MGET; the write meets it.
    local first = not epoch and known == '' and write_epoch('N', now, 'NX')
    return first or write_epoch('L', now)
  end
  if known == '' then return epoch end
  if kind == known_kind and at == known_at then
    if sign == '?' then return write_epoch('L', now) end
    if sign == '+' then redis.call('PEXPIRE', KEYS[1], EPOCH_TTL) end
    return epoch
  end
  -- A later `L` was written by a gateway that found the loss. Any other epoch was written by a gateway that came
  -- first after a loss and did not know of it.
  if kind == 'L' and known_at and at > known_at then return epoch end
  return write_epoch('L', now)
end

-- Compares the epoch in Redis with the known one, and sets `lost_at` and `new_epoch`.
local function apply_epoch(epoch, now)
  local known = ARGV[3]
  if epoch ~= known or epoch == '' then
    epoch = judge(epoch, known, now)
    if epoch ~= string.match(known, '^%w*') then new_epoch = epoch end
  end
  if string.byte(epoch) == 76 then lost_at = tonumber(string.sub(epoch, 2)) end
end
