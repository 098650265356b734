-- A line of time that a rule of another pace wrote. Twin of timeline/conversion.rs.

local common = require 'common'

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local function converted_at(tick, old, new)
  local ahead = tick - old.saved * old.per
  if ahead > 0 then return new.saved * new.per + ahead * new.den / old.den end
  return max(tick / old.per + (new.saved - old.saved), 0) * new.per
end

-- Converts the tail and the holes (before the tail) of a line of `old`, which was written `since` µs ago, to a line of
-- `new` (from now).
return function(holes, raw, first, tail, since, old, new)
  local far = min(old.most * old.per / old.den, new.most * new.per / new.den)
  since = min(max(since, 0), floor(far) + 2 * common.MAX_BUDGET)
  local function converted_end(tick)
    local flowed = converted_at(tick + since * old.den, old, new) - since * new.den
    return min(converted_at(tick, old, new), flowed)
  end
  local new_tail = min(ceil(converted_end(tail)), new.most * new.per + common.MAX_BUDGET * new.den)
  if new_tail <= -new.den then return nil end
  local free_from = -math.huge
  for at = first, #raw, 16 do
    local s, e = struct.unpack('<i8i8', raw, at)
    -- The permits after a hole may be of either pace, and a slower one lets them begin earlier.
    local before_old = floor(converted_end(tail - e + old.per)) - new.per
    e = min(before_old, floor(converted_end(tail - e)))
    s = max(ceil(converted_end(tail - s)), free_from)
    if e - max(s, 1 - new.den) >= new.per then
      holes[#holes + 1] = s
      holes[#holes + 1] = e
      free_from = e
    end
  end
  return new_tail
end
