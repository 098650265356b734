-- The plain way of a token bucket with holes, which blocks leave: the groups of plain.lua that met some, request by request,
-- and requests that ask one bucket alone, each for itself and for a block of the next ones. Twin of token_bucket/block.rs,
-- which explains it, and of token_bucket.lua. Any other request takes the long way, as in plain.lua.
--
--   KEYS        the states of the requests for blocks follow those of the groups, no key twice
--   ARGV[2]     for each request for a block, after the groups: the 26 bytes that a state of the rule begins with; as doubles
--               ticks a permit, ticks a µs, ticks of a full bucket, ticks of one request, the longest distance from now in µs,
--               the horizon, the budget, and the block's requests, reach and jump
--   reply       for each group with holes their number before the step, and the start and the end of each in ticks from now;
--               then for each request for a block a code (1 a block, 2 admitted without one, 0 refused, -1 for the long
--               way), for how long the first permit of a block can be used, or else the wait, remaining, next,
--               reset_after, and of the first grant whole, ticks and born

for item = 1, holes_of + blocks do
  local k, group = groups + item - holes_of, holed and holed[item]
  local head, per, den, full, length, far, horizon, budget, requests, reach, jump
  if group then
    k, head, den, full, length, far = group.k, group.head, group.den, group.full, group.length, group.far
    horizon, budget, requests, reach, jump = group.horizon, group.least, 1, 0, 0
    per = unpack_from('<i8', head, 3)
  else
    head, per, den, full, length, far, horizon, budget, requests, reach, jump, at =
      unpack_from('<c26dddddddddd', plain, at)
  end
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
  if group then
    said[n + 1] = count / 2
    for i = 1, count do said[n + 1 + i] = holes[i] end
    n = n + 1 + count
  end

  -- 1 a block, 2 admitted without one, 0 refused; `last` is the tail after that.
  local start, last, wait, code = tail, tail, 0, -1
  if is_plain then
    if start < reach * den then start = math.max(start, jump * den) end
    code, last = 1, start + requests * length
    if requests < 2 or full < 4 * per or requests * length > full or last > full - floor(full / 4) then
      code, last = 0, tail
      local admitted, asks, budgets = 0, group and group.count or 1, group and group.budgets
      for ask = 0, asks - 1 do
        if budgets then budget = unpack_from('<d', plain, budgets + 8 * ask) end
        local hole
        start = last
        for i = 1, count, 2 do
          local s, e = holes[i], holes[i + 1]
          local from = math.min(s <= -den and 0 or s, e - length)
          if from >= s and from > -den then
            start, hole = from, i
            break
          end
        end
        local stop = start + length
        wait = math.max(ceil_div(stop - full, den), 0)
        if wait <= budget then
          code, admitted = 2, admitted + 1
          if hole then
            local s, e = holes[hole], holes[hole + 1]
            local before, after = start - math.max(s, 1 - den) >= per, e - stop >= per
            if before then holes[hole + 1] = start end
            if after and before then
              table.insert(holes, hole + 2, e)
              table.insert(holes, hole + 2, stop)
              count = count + 2
            elseif after then
              holes[hole] = stop
            elseif not before then
              table.remove(holes, hole)
              table.remove(holes, hole)
              count = count - 2
            end
          else
            last = stop
          end
        end
      end
      if group then said[group.place] = -2 - admitted end
    elseif start - tail >= per then
      holes[count + 1], holes[count + 2] = tail, start
      count = count + 2
    end
  end

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
  if not group then
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
    local start_us = floor(start / den)
    said[n + 1], said[n + 2], said[n + 3], said[n + 4] = code, code == 1 and start_us or wait, remaining, next
    said[n + 5], said[n + 6], said[n + 7], said[n + 8] = reset_after, now + start_us, start % den, born
    n = n + 8
  end
end
