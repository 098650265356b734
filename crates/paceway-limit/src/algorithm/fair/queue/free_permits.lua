if part == 'free_permits' then
-- Permits that are free before the last slots. Twin of queue/free_permits.rs, which explains them.
local stored, queue, slots = lazy.stored, lazy.queue, lazy.slots
local MOST_MOVED, GRANT, GRANT_SIZE = 16, '<dddd', 32

-- The request with the last slot that can move and costs less than `below`.
local function last_movable(q, below)
  for id in slots.last(q, now + 1, '+inf') do
    local it = stored.request(q, id)
    if it and not it.called and it.cost < below and #it.grants == GRANT_SIZE and not queue.is_gone(q, it) then return id, it end
  end
end

-- Gives free permits to the requests with the last slots. A gate counts permits, and knows no free ones before others.
return function(q, state)
  if q.len == 0 or state.open.gate then return end
  q.room, q.changed = 0, true
  local algorithm, open, below = state.algorithm, state.open, math.huge
  for _ = 1, MOST_MOVED do
    local id, it = last_movable(q, below)
    if not id then return end
    local wait, start = algorithm.earliest(open, 0, it.cost)
    if now + wait < it.at then
      local grants = pack(GRANT, algorithm.take(open, start, it.cost))
      state.dirty = true
      local old = queue.give(q, id, { at = now + wait, grants = grants })
      lazy.adjust.give_back(state, it.cost, unpack_from(GRANT, old.grants))
      below = math.huge
    elseif it.cost == 1 then
      return
    else
      below = it.cost
    end
  end
  -- The next step moves others.
  q.room = 1
end
end
