if part == 'concurrent' then
-- A request that is granted a concurrency permit keeps it while it waits for rate permits, if that wait is at
-- most this long, µs.
local KEPT = 500000

-- Whether every concurrency limiter has a free permit: true; or the want that has none and, when it may wait
-- for one, until when and when to ask again; else the wait until the next try. A paused limiter has no free
-- permit, not even for a request that was notified.
return function(wants, budget, at, ticket)
  local taken
  for i, want in ipairs(wants) do
    if want.enforce and want.state.algorithm.lease then
      local algorithm, open = want.state.algorithm, want.state.open
      if open.gate then
        -- A request that waits in the queue of a paused limiter keeps its place.
        want.free = algorithm.holds(open, ticket)
        taken = taken or i
      else
        want.free = algorithm.is_free(open, ticket)
        if not want.free then taken = taken or i end
      end
    end
  end
  if not taken and at <= KEPT then return true end
  for _, want in ipairs(wants) do
    if want.free then
      want.state.algorithm.refund(want.state.open, ticket.gateway, ticket.number, ticket.deadline)
      want.state.dirty = true
    end
  end
  if not taken then return true end
  local algorithm, open = wants[taken].state.algorithm, wants[taken].state.open
  local deadline, ask_after
  if budget > 0 then deadline, ask_after = algorithm.enqueue(open, ticket, budget, wants[taken].turn) end
  if deadline then return taken, deadline, ask_after end
  if not open.gate then return taken, nil, nil, RETRY end
  -- It must not be notified when the pause ends: it is refused now.
  algorithm.refund(open, ticket.gateway, ticket.number, ticket.deadline)
  return taken, nil, nil, math.max(open.gate.stop - now, algorithm.has_room(open) and 1 or RETRY)
end
end
