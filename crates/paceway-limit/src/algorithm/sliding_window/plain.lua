-- The plain way of requests that ask one sliding window alone, one after the other. It serves a window under one rule,
-- without entries ahead, a gate or a recent loss. The decision, and the bytes that it leaves, are those of
-- sliding_window.lua. A function that is made costs more than one that is called, so that this has none.
--
--   ARGV[2]     for each request, after the groups and the blocks: the 32 bytes of span, count, count and span in a state
--               of the rule; as doubles the number of its key, the cost, the budget, the rule's count, span and grain, and
--               the horizon
--   reply       for each request admitted (1, 0, or -1 for the long way), wait, remaining, next, reset_after, and of a grant
--               its instant and born

-- The stored state of sliding_window/state.lua: the bytes of its head and of an entry, the slots that are read at once, and
-- the number of slots up to which a state is read and written whole.
local HEAD_SIZE, ENTRY, SIZE, CHUNK, SMALL = 94, '<i8i8', 16, 32, 24
local MAX_STAMPS, KNOWN_PAST = 10000, 5000000

-- The keys of which a request takes the long way: all later ones follow it, so that they keep their order.
local is_long

for _ = 1, windows do
  local HEAD, KIND, NONE = '<c2i8i8i8i8i8c32i8i4i4c4', '\1S', '\0\0\0\0'
  local law, k, cost, budget, count, span, grain, horizon
  law, k, cost, budget, count, span, grain, horizon, at = unpack_from('<c32ddddddd', plain, at)
  local key = KEYS[k]
  local admitted, wait, left, next, reset_after, slot, born = -1, 0, 0, 0, 0, 0, 0

  -- `break` leaves the window to the long way, before anything is written.
  repeat
    if is_long and is_long[k] then break end
    local value = redis.pcall('GETRANGE', key, 0, HEAD_SIZE + CHUNK * SIZE - 1)
    if type(value) == 'table' then break end
    local its_born, floor_at, base, last, total, lives, first, entries = now, 0, 0, 0, 0, 0, 0, 0
    local lost, is_unused = horizon >= 0 and lost_at or 0, true
    if value ~= '' then
      if #value < HEAD_SIZE then break end
      local kind, its_law, others
      kind, its_born, floor_at, base, last, total, its_law, lives, first, entries, others = unpack_from(HEAD, value)
      if kind ~= KIND or its_law ~= law or others ~= NONE then break end
      if first < 0 or entries < 0 or base < 0 or total < base then break end
      if first + entries <= CHUNK and #value < HEAD_SIZE + SIZE * (first + entries) then break end
      local knows = its_born >= lost
      if knows then lost = 0 end
      is_unused = not knows or last + span <= now
      if is_unused then
        its_born, first, entries = now, 0, 0
        -- A rule with a longer window may still count the past permits.
        if knows and last + span + KNOWN_PAST > now then
          floor_at, base = last, total
        else
          floor_at, base, last, total = 0, 0, 0, 0
        end
      end
    end
    -- Grants from before the loss may count, or the clock was set back, so that permits count which are no longer kept.
    local now_at = grain == 1 and now or ceil_div(now, grain) * grain
    if lost > 0 and lost + horizon + grain + span + KNOWN_PAST > now then break end
    if base > 0 and floor_at + span > now_at then break end

    -- The entry `i` (from 0) is the one with the permit numbered `number`, a window before the last permit of the request.
    -- Slot s of the value begins at byte SIZE * s + origin of `slots`.
    local slots, origin = value, HEAD_SIZE + 1
    local start, number, i = math.max(now_at, last), total + cost - 1 - count, 0
    local granted_at = start
    if number + 1 >= base and entries > 0 then
      -- Each entry has a permit or more.
      i = math.max(math.min(number - base, entries - 1), 0)
      local stop = SIZE * (first + math.min(i + 2, entries))
      if stop + origin > #slots + 1 then
        local from = first + math.max(i - CHUNK + 2, 0)
        slots = call('GETRANGE', key, HEAD_SIZE + SIZE * from, HEAD_SIZE + SIZE * (from + CHUNK) - 1)
        origin = 1 - SIZE * from
        if stop + origin > #slots + 1 then break end
      end
      local place = SIZE * (first + i) + origin
      while i > 0 and place > SIZE do
        local _, before = unpack_from(ENTRY, slots, place - SIZE)
        if before <= number then break end
        i, place = i - 1, place - SIZE
      end
      if i > 0 and place <= SIZE then break end
      if number >= base then granted_at = math.max(start, unpack_from(ENTRY, slots, place) + span) end
    end
    -- A request for several permits may leave room before them.
    if cost > 1 and granted_at > start then break end

    -- A grain can be used from its begin on, and counts as its end.
    local its_wait = math.max(granted_at - grain + 1 - now, 0)
    local is_granted = its_wait <= budget
    local next_at, kept, taken = granted_at, entries, total
    if is_granted then
      if entries >= math.min(count, MAX_STAMPS) + 2 + MAX_HOLES then break end
      number, taken = number + 1, total + cost
      if number >= total then
        next_at = granted_at + span
      elseif number >= base then
        local before, until_ = unpack_from(ENTRY, slots, SIZE * (first + i) + origin)
        if until_ <= number then before = unpack_from(ENTRY, slots, SIZE * (first + i + 1) + origin) end
        next_at = math.max(granted_at, before + span)
      end
    end

    -- The entries that are past, and how many permits are a window before `now_at` or earlier.
    local past, before, last_at = 0, base, is_granted and granted_at or last
    if entries > 0 and (is_granted or last <= now_at) then
      local place, seen = SIZE * first + origin, 0
      if place < 1 or place + SIZE > #slots + 1 then
        slots = call('GETRANGE', key, HEAD_SIZE + SIZE * first, HEAD_SIZE + SIZE * (first + CHUNK) - 1)
        place = 1
      end
      while seen < entries do
        if place + SIZE > #slots + 1 then seen = nil break end
        local then_, until_ = unpack_from(ENTRY, slots, place)
        if then_ + span > now_at then break end
        seen, before, place = seen + 1, until_, place + SIZE
        if then_ + span <= now then past, floor_at, base = seen, then_, until_ end
      end
      -- More are past than were read at once.
      if not seen then break end
    end
    wait, next = its_wait, math.max(next_at - grain + 1 - now, 0)
    left = last_at > now_at and 0 or math.max(before + count - taken, 0)
    reset_after = math.max(last_at + span - now, 0)
    admitted = 0
    if not is_granted then break end

    admitted, slot, born = 1, granted_at, its_born
    first, kept = first + past, entries - past
    if entries > 0 and last == granted_at then kept = kept - 1 end
    local size, stop, added = kept + 1, SIZE * (first + kept), pack(ENTRY, granted_at, taken)
    if is_unused or size <= SMALL or first > size + 64 then
      local stored = ''
      if kept > 0 then
        if HEAD_SIZE + stop <= #value then
          stored = string.sub(value, HEAD_SIZE + SIZE * first + 1, HEAD_SIZE + stop)
        else
          stored = call('GETRANGE', key, HEAD_SIZE + SIZE * first, HEAD_SIZE + stop - 1)
        end
      end
      local head = pack(HEAD, KIND, born, floor_at, base, granted_at, taken, law, now + reset_after, 0, size, NONE)
      call('SET', key, head .. stored .. added, 'PX', lifetime(reset_after))
    else
      local longer = now + reset_after > lives
      if longer then lives = now + reset_after + floor(reset_after / 4) end
      call('SETRANGE', key, HEAD_SIZE + stop, added)
      call('SETRANGE', key, 0, pack(HEAD, KIND, born, floor_at, base, granted_at, taken, law, lives, first, size, NONE))
      if longer then call('PEXPIRE', key, lifetime(lives - now)) end
    end
  until true

  if admitted < 0 then
    is_long = is_long or {}
    is_long[k] = true
    long = (long or '') .. pack('<c1dddddddddd', 'D', budget, 1, k, 83, cost, 1, horizon, count, span, grain)
  end
  said[n + 1], said[n + 2], said[n + 3], said[n + 4] = admitted, wait, left, next
  said[n + 5], said[n + 6], said[n + 7] = reset_after, slot, born
  n = n + 7
end
