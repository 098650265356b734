-- The marker: whether the states are still those that the gateway knows. It is `N` or `L` and the instant (µs) at which
-- it was written: nothing is known to have been lost before it, or states were lost then. What is lost counts as used up
-- at that instant, so that nobody's grants are made twice.
--
--   KEYS[1]  the marker
--   ARGV[3]  what the gateway knows it to be; empty where it knows none yet. Behind it `?` when the server may have
--            lost writes since, `+` when the marker is to live longer, `=` when the gateway has asked for it just before:
--            then KEYS[1] is another key, because the marker may be on another node.
local MARKER_LIVES = '34560000000'

-- when states were lost, 0 where that is not known of any; and the marker, where the gateway does not know it
local lost, told = 0, nil

-- kind, instant and sign of a marker; nil where it is none that can have been written before `now`
local function read_marker(text, now)
  local kind, at, sign = string.match(text, '^([NL])(%d+)([?+]?)$')
  if not kind or #at > 16 or tonumber(at) > now + MAX_BUDGET then return nil end
  return kind, tonumber(at), sign
end

local function write_marker(kind, now, ...)
  local marker = kind .. string.format('%.0f', now)
  return redis.call('SET', KEYS[1], marker, 'PX', MARKER_LIVES, ...) and marker
end

-- the marker that holds from now on, of the one that is there (false: none)
local function judge(marker, known, now)
  local asked = string.match(known, '^(%w+)=$')
  if asked then return asked end
  local kind, at, own_sign = read_marker(marker or '', now)
  local known_kind, known_at, sign = read_marker(known, now)
  if own_sign ~= '' then
    -- A value of another type is not seen when it is read, and met when it is written.
    local first = not marker and known == '' and write_marker('N', now, 'NX')
    return first or write_marker('L', now)
  end
  if known == '' then return marker end
  if kind == known_kind and at == known_at then
    if sign == '?' then return write_marker('L', now) end
    if sign == '+' then redis.call('PEXPIRE', KEYS[1], MARKER_LIVES) end
    return marker
  end
  -- Somebody else has met the loss; or was the first to come behind it, and does not know of it.
  if kind == 'L' and known_at and at > known_at then return marker end
  return write_marker('L', now)
end

local function heed(marker, now)
  local known = ARGV[3]
  if marker ~= known or marker == '' then
    marker = judge(marker, known, now)
    if marker ~= string.match(known, '^%w*') then told = marker end
  end
  if string.byte(marker) == 76 then lost = tonumber(string.sub(marker, 2)) end
end
