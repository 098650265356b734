-- The plain way of requests that take turns at one token bucket alone: one that joins a queue in which others wait, and one
-- that confirms its slot. The decisions, and the values that they leave, are those of the other files of this folder, which
-- explain them; stored.lua describes the keys. Whatever is not that plain takes the long way, with all later entries of the
-- call: holes and gates, bookings and free permits, the first and the last request of a queue and of a priority, requests
-- that make room for others, and gateways that may have died. A function that is made costs more than one that is called,
-- so that this has none.

-- Where the next entry begins (entries.lua), and its letter.
local from = 1
letter = string.byte(entries)

if letter == 81 or letter == 67 then -- 'Q', 'C'
local META, META_SIZE, TENANT, REQUEST, LINK = '<Bddddddddddddddddddddddddd', 201, '<ddddddd', '<dddddBBI2c0I2c0', '<dd'
local STATE = '<BBi8i8i8i8i8i8i8'
-- The places of what `m` has. The five of a class begin with the virtual time.
local BORN, LAST, LEN, FIRST, EXPIRES, NEXT_LOOK, BOOKED, ROOM = 2, 3, 4, 5, 6, 7, 23, 26
local VIRTUAL, WEIGHT, PASSED, TENANTS, LATER = 3, 4, 5, 6, 7
local MAX_WAITING, MAX_TENANTS, MAX_WEIGHT, PIECE, PERMIT, MOST, PATIENCE = 10000, 1024, 1000, 16, 1000000, 1000000, 19
local OVERDUE, LIFE, AHEAD, LOOK_EVERY, LEASE = 1000000, 60000000, 50000, 500000, 10000000
-- The state of the first entry has been read with the epoch.
local is_first = groups == 0

repeat
  -- Where the entry after this one begins; nil if this one takes the long way. `break` leaves it to that, before anything is
  -- written.
  local after
  repeat
    local k, class, weight, tenant, gateway, ticket, budget, number, n, at, _
    if letter == 81 then -- 'Q'
      k, _, class, weight, tenant, gateway, ticket, _, budget, n, at = unpack_from('<dddddc0ddddd', entries, from + 1)
    else
      k, _, number, n, at = unpack_from('<dddd', entries, from + 1)
    end
    local key, kind, cost, enforce, horizon
    key, kind, cost, enforce, horizon, at = unpack_from('<ddddd', entries, at)
    if kind ~= 84 or n ~= 1 or enforce ~= 1 then break end
    local per, den, most, stop = unpack_from('<ddd', entries, at)
    local lost = horizon >= 0 and lost_at or 0

    -- The bucket, in ticks from now.
    local raw
    if is_first and key == 2 then raw = states[2] else raw = redis.pcall('GET', KEYS[key]) end
    is_first = false
    if not raw or type(raw) == 'table' or #raw ~= 58 then break end
    local version, its_kind, its_per, its_den, its_most, whole, ticks, born = unpack_from(STATE, raw)
    if version ~= VERSION or its_kind ~= 84 or its_per ~= per or its_den ~= den or its_most ~= most or born < lost then break end
    local full, tail = most * per, clamp(whole - now, floor(most * per / den) + 2 * MAX_BUDGET) * den + ticks
    if tail <= -den then tail, born = 0, now end

    -- The queue, and what it keeps about the request.
    local hash, order, values, id, tenant_field, gateway_field = KEYS[k], KEYS[k + 1], nil, nil, nil, nil
    if letter == 81 then -- 'Q'
      tenant_field, gateway_field = 't' .. string.char(48 + class) .. tenant, 'g' .. pack('>d', gateway)
      values = redis.pcall('HMGET', hash, 'm', tenant_field, gateway_field)
    else
      id = pack('>d', number)
      values = redis.pcall('HMGET', hash, 'm', 'r' .. id, 'n' .. id, 'p' .. id)
    end
    local meta = values[1]
    if not meta or #meta ~= META_SIZE or string.byte(meta) ~= VERSION then break end
    local m = { unpack_from(META, meta) }
    if m[BORN] < lost or m[FIRST] < now - OVERDUE or m[BOOKED] > 0 or m[ROOM] ~= 0 then break end

    local wait, place, grant
    if letter == 81 then -- 'Q'
      -- It joins the queue.
      if cost > 1 and cost * 4 > most then break end
      if m[LEN] >= MAX_WAITING or weight < 1 or weight > MAX_WEIGHT then break end
      local c = 5 * class
      local its_weight, start, waiting, granted, head, head_cost, last = weight, m[VIRTUAL + c], 0, 0, 0, 0, 0
      if values[2] then
        its_weight, start, waiting, granted, head, head_cost, last = unpack_from(TENANT, values[2])
        if waiting > 0 and its_weight ~= weight then break end
      elseif m[TENANTS + 5] + m[TENANTS + 10] + m[TENANTS + 15] >= MAX_TENANTS then
        break
      end
      if budget > MAX_BUDGET then budget = MAX_BUDGET end
      local slot = tail
      tail = tail + cost * per
      wait = -floor((full - tail) / den)
      if wait <= 0 or wait > budget then break end

      local deadline, instant, expires = now + budget, now + wait, nil
      if deadline > m[EXPIRES] then
        m[EXPIRES] = deadline + LIFE
        expires = lifetime(m[EXPIRES] - now)
      end
      number = m[LAST] + 1
      if number < now then number = now end
      id, place = pack('>d', number), number
      m[LAST], m[LEN] = number, m[LEN] + 1
      if instant < m[FIRST] then m[FIRST] = instant end
      local like, waits = cost == 1 and '1' or string.format('%.0f', cost), 0
      if values[3] then _, waits = unpack_from(LINK, values[3]) end
      local request = pack(REQUEST, gateway, ticket, deadline, instant, cost, class, 0, #tenant, tenant, #like, like)
        .. pack('<dddd', now + floor(slot / den), slot % den, born, 0)
      if waiting > 0 then
        call('ZADD', order, instant, id)
        call('HSET', hash, 'm', pack(META, unpack(m, 1, 26)),
          tenant_field, pack(TENANT, weight, start, waiting + 1, granted, head, head_cost, number), 'r' .. id, request,
          'n' .. pack('>d', last), pack(LINK, number, cost), 'p' .. id, pack('<d', last),
          gateway_field, pack(LINK, now, waits + 1))
      else
        -- It is the first one of its tenant.
        if not values[2] then m[TENANTS + c] = m[TENANTS + c] + 1 end
        m[WEIGHT + c] = m[WEIGHT + c] + weight
        local score = (class * 3 - 12) * 2 ^ 49
        if start <= m[VIRTUAL + c] then
          start = m[VIRTUAL + c]
          score = score + start + (cost > MOST and MOST or cost) * -floor(-PERMIT / weight)
        else
          score = score + 2 ^ 49 + start
          if start < m[LATER + c] then m[LATER + c] = start end
        end
        call('ZADD', order, instant, id, score, string.sub(tenant_field, 2))
        call('HSET', hash, 'm', pack(META, unpack(m, 1, 26)),
          tenant_field, pack(TENANT, weight, start, 1, granted, number, cost, number), 'r' .. id, request,
          gateway_field, pack(LINK, now, waits + 1))
      end
      if expires then
        call('PEXPIRE', hash, expires)
        call('PEXPIRE', order, expires)
      end
      whole, ticks = floor(tail / den), tail % den
      local state = pack(STATE, VERSION, 84, per, den, most, now + whole, ticks, born, now)
      call('SET', KEYS[key], state, 'PX', lifetime(ticks > 0 and whole + 2 or whole))
    else
      -- It confirms its slot.
      local own, next, previous = values[2], values[3], values[4]
      if not own or m[LEN] < 2 or now >= m[NEXT_LOOK] or now < m[NEXT_LOOK] - LOOK_EVERY then break end
      local gateway, ticket, deadline, instant, cost, class, called, name, like, grants = unpack_from(REQUEST, own)
      if #own - grants ~= 31 then break end
      local other, heard, waits
      local set, gone, scores, left = { 'm', false, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, { nil, nil, nil, nil }, nil, nil
      gateway_field = 'g' .. pack('>d', gateway)
      if called == 1 then
        heard = call('HGET', hash, gateway_field)
        if not heard then break end
      else
        if instant - now > AHEAD then break end
        -- The highest priority with a waiting request, and the one whose turn it is.
        local highest = m[WEIGHT + 5] > 0 and 1 or m[WEIGHT + 10] > 0 and 2 or 3
        local turn = highest
        for lower = highest + 1, 3 do
          local passed = m[PASSED + 5 * lower]
          if passed >= PATIENCE and (turn == highest or passed >= m[PASSED + 5 * turn]) then turn = lower end
        end
        local c, base = 5 * turn, (turn * 3 - 12) * 2 ^ 49
        local virtual, later, weights = m[VIRTUAL + c], m[LATER + c], m[WEIGHT + c]
        -- The tenants that start now.
        scores = { nil, nil, nil, nil, nil, nil, nil, nil }
        local first = call('ZRANGEBYSCORE', order, base, base + 2 ^ 49 - 1, 'LIMIT', 0, 1)[1]
        local fields = { gateway_field, nil, nil, nil }
        if not first or later <= virtual then
          local ones = call(
            'ZRANGEBYSCORE', order, base + 2 ^ 49, base + 2 ^ 50 - 1, 'WITHSCORES', 'LIMIT', 0, PIECE)
          later = math.huge
          for i = 1, #ones, 2 do
            local start = tonumber(ones[i + 1]) - base - 2 ^ 49
            if not first and i == 1 and start > virtual then virtual = start end
            if start > virtual then
              later = start
              break
            end
            fields[#fields + 1] = 't' .. ones[i]
          end
        end
        local moved = #fields
        if moved > PIECE then break end
        if first then fields[moved + 1] = 't' .. first end
        local tenants = call('HMGET', hash, unpack(fields))
        heard = tenants[1]
        -- The first one of all in the order. Lua compares texts by the rules of a language, Redis compares bytes.
        local member, found, best = first, tenants[moved + 1], nil
        if first and not found then break end
        local is_plain = heard and (first or moved > 1)
        for i = moved > 1 and (first and moved + 1 or moved) or 1, 2, -1 do
          if not tenants[i] then
            is_plain = false
            break
          end
          local weight, start, _, _, _, head_cost = unpack_from(TENANT, tenants[i])
          if i <= moved and start > virtual then is_plain = false end
          local its_member = string.sub(fields[i], 2)
          local score = base + start + (head_cost > MOST and MOST or head_cost) * -floor(-PERMIT / weight)
          if i <= moved then
            local to = #scores
            scores[to + 1], scores[to + 2] = score, its_member
          end
          local is_before = not best or score < best
          if score == best then
            local b = 1
            while string.byte(its_member, b) == string.byte(member, b) do b = b + 1 end
            is_before = (string.byte(its_member, b) or -1) < (string.byte(member, b) or -1)
          end
          if is_before then member, found, best = its_member, tenants[i], score end
        end
        if not is_plain then break end
        local weight, start, waiting, granted, head, head_cost, last = unpack_from(TENANT, found)
        -- The first request of that tenant.
        if head ~= number then
          local its_id = pack('>d', head)
          local its_values = call('HMGET', hash, 'r' .. its_id, 'n' .. its_id, 'p' .. its_id)
          if not its_values[1] then break end
          next, previous = its_values[2], its_values[3]
          local gateway_, ticket_, deadline_, at_, cost_, _, _, name_, like_, grants_ = unpack_from(REQUEST, its_values[1])
          other = {
            id = its_id, gateway = gateway_, ticket = ticket_, deadline = deadline_, at = at_, cost = cost_, class = turn,
            name = name_, grants = string.sub(its_values[1], grants_) }
          if like_ ~= like or at_ <= instant or at_ > deadline then break end
          if gateway_ ~= gateway then
            local its_heard = call('HGET', hash, 'g' .. pack('>d', gateway_))
            if not its_heard or unpack_from('<d', its_heard) < now - LEASE then break end
          end
        end
        if previous or waiting > 1 ~= (next and true or false) or waiting == 1 and weights == weight then break end

        -- It takes its turn.
        local its_cost = other and other.cost or cost
        if its_cost > MOST then its_cost = MOST end
        start = start + its_cost * -floor(-PERMIT / weight)
        if start > virtual + 2 ^ 46 then start = virtual + 2 ^ 46 end
        virtual = virtual + floor(its_cost * PERMIT / (weights > 1 and weights or 1))
        if virtual >= 2 ^ 47 then break end
        local passing = other and other.cost or cost
        granted = granted + passing
        if waiting == 1 then
          m[WEIGHT + c], head, head_cost, last = weights - weight, 0, 0, 0
        else
          head, head_cost = unpack_from(LINK, next)
          gone[1] = 'p' .. pack('>d', head)
        end
        if waiting == 1 and start <= virtual then
          m[TENANTS + c], left, gone[1] = m[TENANTS + c] - 1, member, 't' .. member
        else
          local score, to = base + start, #scores
          if waiting == 1 then
            score = score + 2 ^ 50
          elseif start <= virtual then
            score = score + (head_cost > MOST and MOST or head_cost) * -floor(-PERMIT / weight)
          else
            score = score + 2 ^ 49
            if start < later then later = start end
          end
          scores[to + 1], scores[to + 2] = score, member
          set[3], set[4] = 't' .. member, pack(TENANT, weight, start, waiting - 1, granted, head, head_cost, last)
        end
        m[VIRTUAL + c], m[LATER + c] = virtual, later
        for one = 1, 3 do
          local i = PASSED + 5 * one
          if one <= highest or m[WEIGHT + 5 * one] <= 0 then
            m[i] = 0
          elseif one == turn then
            local most = PATIENCE * passing
            m[i] = m[i] < most and m[i] - most or 0
          else
            m[i] = m[i] + passing
          end
        end
      end

      _, waits = unpack_from(LINK, heard)
      local s, g = #set, #gone
      if other then
        -- The other one takes the slot, and this one takes its.
        local to = #scores
        scores[to + 1], scores[to + 2], scores[to + 3], scores[to + 4] = instant, other.id, other.at, id
        set[s + 1], set[s + 2] = 'r' .. other.id, pack(REQUEST, other.gateway, other.ticket, other.deadline, instant, other.cost,
          other.class, 1, #other.name, other.name, #like, like) .. string.sub(own, grants)
        set[s + 3], set[s + 4] = 'r' .. id, pack(REQUEST, gateway, ticket, deadline, other.at, cost, class, 0, #name, name,
          #like, like) .. other.grants
        set[s + 5], set[s + 6] = gateway_field, pack(LINK, now, waits)
        if instant < m[FIRST] then m[FIRST] = instant end
        wait, place = other.at > now and other.at - now or 0, number
      else
        gone[g + 1], gone[g + 2], gone[g + 3] = 'r' .. id, 'n' .. id, 'p' .. id
        if waits > 1 then
          set[s + 1], set[s + 2] = gateway_field, pack(LINK, now, waits - 1)
        else
          gone[g + 4] = gateway_field
        end
        m[LEN] = m[LEN] - 1
        wait, grant = instant - now, string.sub(own, grants)
      end
      set[2] = pack(META, unpack(m, 1, 26))
      if scores and scores[1] then call('ZADD', order, unpack(scores)) end
      if left then call('ZREM', order, left) end
      if not other then call('ZREM', order, id) end
      call('HSET', hash, unpack(set))
      if gone[1] then call('HDEL', hash, unpack(gone)) end
      if other then
        local its_ticket = string.format(other.ticket < 2147483648 and '%d' or '%.0f', other.ticket)
        redis.pcall('PUBLISH', 'paceway:call:' .. string.format('%.0f', other.gateway), its_ticket)
      end
    end

    local at, whole, ticks, born, aux = wait, place, 0, -1, 0
    if grant then
      whole, ticks, born, aux = unpack_from('<dddd', grant)
      if at < 0 then at = 0 end
    end
    local left, next = floor((full - tail) / per), -floor((full - tail - per) / den)
    local reset_after = -floor(-tail / den) + (tail % den > 0 and 1 or 0)
    told = told .. pack('<dddddddddddd', 1, wait, 0, 1, left > 0 and left or 0, next > 0 and next or 0,
      reset_after > 0 and reset_after or 0, at, whole, ticks, born, aux)
    after = stop
  until true
  if not after then break end
  from = after
  letter = string.byte(entries, from)
until letter ~= 81 and letter ~= 67
-- Most calls are at their end.
if not letter and not new_epoch then return told end
end
