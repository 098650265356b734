-- The plain way of requests that ask one token bucket alone, each for itself, and most of them for a block of the next
-- ones. Twin of token_bucket/block.rs, which explains it, and of token_bucket.lua. A state may have holes here, because
-- blocks leave them. Any other request takes the long way, as in plain.lua.
--
--   KEYS        their states follow those of the groups, no key twice
--   ARGV[2]     for each request, after the groups: the 26 bytes that a state of the rule begins with; as doubles ticks a
--               permit, ticks a µs, ticks of a full bucket, ticks of one request, the longest distance from now in µs, the
--               horizon, the budget, and the block's requests, reach and jump
--   reply       for each request, after the groups, a code (1 a block, 2 admitted without one, 0 refused, -1 for the long
--               way), for how long the first permit of a block can be used, or else the wait, remaining, next,
--               reset_after, and of the first grant whole, ticks and born

for k = groups + 1, groups + blocks do
  local head, per, den, full, length, far, horizon, budget, requests, reach, jump
  head, per, den, full, length, far, horizon, budget, requests, reach, jump, at =
    unpack_from('<c26dddddddddd', plain, at)
  local raw, tail, born, holes, count = states[k + 1], 0, now, {}, 0
  local lost = horizon >= 0 and lost_at or 0
  local is_plain = lost == 0
  if raw then
    is_plain = false
    if #raw >= 58 and #raw < 1100 and (#raw - 58) % 16 == 0 then
      local its_head, whole, ticks, since = unpack_from('<c26i8i8i8', raw)
      if its_head == head and since >= lost then
        is_plain = true
        local ahead = clamp(whole - now, far) * den + ticks
        if ahead > -den then
          tail, born = ahead, since
          for place = 59, #raw, 16 do
            local s, e = unpack_from('<i8i8', raw, place)
            s, e = tail - s, tail - e
            if e - math.max(s, 1 - den) >= per then
              holes[count + 1], holes[count + 2] = s, e
              count = count + 2
            end
          end
        end
      end
    end
  end

  -- 1 a block, 2 admitted without one, 0 refused
  local start, wait, code = tail, 0, -1
  local last, hole = tail, nil
  if is_plain then
    if start < reach * den then start = math.max(start, jump * den) end
    last = start + requests * length
    code = 1
    if requests < 2 or full < 4 * per or requests * length > full or last > full - floor(full / 4) then
      start, code = tail, 2
      for i = 1, count, 2 do
        local s, e = holes[i], holes[i + 1]
        local from = math.min(s <= -den and 0 or s, e - length)
        if from >= s and from > -den then
          start, hole = from, i
          break
        end
      end
      last = hole and tail or start + length
      wait = math.max(ceil_div(start + length - full, den), 0)
      if wait > budget then code, last = 0, tail end
    end
  end

  if code > 0 then
    local stop = start + length
    if hole then
      local s, e = holes[hole], holes[hole + 1]
      local before, after = start - math.max(s, 1 - den) >= per, e - stop >= per
      if before then holes[hole], holes[hole + 1] = s, start end
      if after and before then
        table.insert(holes, hole + 2, e)
        table.insert(holes, hole + 2, stop)
        count = count + 2
      elseif after then
        holes[hole], holes[hole + 1] = stop, e
      elseif not before then
        table.remove(holes, hole)
        table.remove(holes, hole)
        count = count - 2
      end
    elseif start - tail >= per then
      holes[count + 1], holes[count + 2] = tail, start
      count = count + 2
    end
  end

  -- The level of token_bucket.lua.
  local remaining = full - last
  remaining = math.max(floor((last <= -den and full or remaining) / per), full - math.max(last, 1 - den) >= per and 1 or 0)
  local next = last
  for i = 1, count, 2 do
    local s, e = holes[i], math.min(holes[i + 1], full)
    if i == 1 then next = math.min(s <= -den and 0 or s, holes[i + 1] - per) end
    local room = floor((e - (s <= -den and 0 or s)) / per)
    remaining = remaining + math.max(room, e - math.max(s, 1 - den) >= per and 1 or 0)
  end
  next = math.max(ceil_div(next + per - full, den), 0)
  local whole, ticks = floor(last / den), last % den
  local reset_after = math.max(ticks > 0 and whole + 2 or whole, 0)

  if code > 0 then
    local state = pack('<c26i8i8i8i8', head, now + whole, ticks, born, now)
    if count > 0 then
      local parts = { state }
      for i = 1, count, 2 do parts[#parts + 1] = pack('<i8i8', last - holes[i], last - holes[i + 1]) end
      state = table.concat(parts)
    end
    if raw then
      call('SET', KEYS[k + 1], state, 'PX', lifetime(reset_after))
    elseif not call('SET', KEYS[k + 1], state, 'PX', lifetime(reset_after), 'NX') then
      -- MGET does not show a value of another type.
      code = -1
    end
  end

  if code < 0 then
    long = (long or '') .. pack('<c1ddddddddddddd', 'B', requests, reach, jump, budget, 1, k + 1, 84, length / per, 1,
      horizon, per, den, full / per)
  end
  local start_us = floor(start / den)
  said[n + 1], said[n + 2], said[n + 3], said[n + 4] = code, code == 1 and start_us or wait, remaining, next
  said[n + 5], said[n + 6], said[n + 7], said[n + 8] = reset_after, now + start_us, start % den, born
  n = n + 8
end
