if part == 'conversion' then
-- A line of time that a rule of another pace wrote. Twin of timeline/conversion.rs.

-- The tick of the new line for the tick at which an interval ends on the old one, of a line that is written now.
local function converted_at(tick, old, new)
  local ahead = tick - old.saved * old.per
  if ahead > 0 then return new.saved * new.per + ahead * new.den / old.den end
  return math.max(tick / old.per + (new.saved - old.saved), 0) * new.per
end

-- Converts the tail and the holes (before the tail) of a line of `old`, which was written `since` µs ago, to a line of
-- `new` (from now).
return function(holes, raw, first, tail, since, old, new)
  local far = math.min(old.most * old.per / old.den, new.most * new.per / new.den)
  since = math.min(math.max(since, 0), math.floor(far) + 2 * MAX_BUDGET)
  local function converted_end(tick)
    local flowed = converted_at(tick + since * old.den, old, new) - since * new.den
    return math.min(converted_at(tick, old, new), flowed)
  end
  local new_tail = math.min(math.ceil(converted_end(tail)), new.most * new.per + MAX_BUDGET * new.den)
  if new_tail <= -new.den then return nil end
  local free_from = -math.huge
  for at = first, #raw, 16 do
    local s, e = struct.unpack('<i8i8', raw, at)
    -- The permits after a hole may be of either pace, and a slower one lets them begin earlier.
    local before_old = math.floor(converted_end(tail - e + old.per)) - new.per
    e = math.min(before_old, math.floor(converted_end(tail - e)))
    s = math.max(math.ceil(converted_end(tail - s)), free_from)
    if e - math.max(s, 1 - new.den) >= new.per then
      holes[#holes + 1] = s
      holes[#holes + 1] = e
      free_from = e
    end
  end
  return new_tail
end
end
