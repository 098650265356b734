if part == 'tightest' then
-- For a request that no limiter delayed: the rate limiter that has the fewest permits left, among equals the
-- first; and its level.
return function(wants)
  local bound, least, next, reset, paused = 1, level_of(wants[1].state, wants[1].enforce)
  if not wants[1].is_permits then return bound, least, next, reset, paused end
  for i = 2, #wants do
    if wants[i].is_permits then
      local remaining, its_next, its_reset, its_pause = level_of(wants[i].state, true)
      if remaining < least then
        bound, least, next, reset, paused = i, remaining, its_next, its_reset, its_pause
      end
    end
  end
  return bound, least, next, reset, paused
end
end
