if part == 'own_queues' then
-- The limiters that bound their own queues. Twin of `excess` and `fitting_all_queues` in reserve.rs.

-- By how much a request that comes at `from` would wait longer in this limiter alone than its queue allows,
-- µs. The wait for the end of a pause is no wait in the queue.
local function excess(want, from)
  local open = want.state.open
  local longest = open.longest_wait
  if not longest then return 0 end
  local earliest = earliest_of(want, math.min(from, MAX_BUDGET))
  local paused = open.gate and want.enforce and open.gate.stop - now or 0
  if earliest - math.max(from, paused) > longest then return earliest - from - longest end
  return 0
end

-- The first instant from `retry_after` on at which no queue is too long for the request and which is within
-- the budget, and the limiter that made it so late: `bound` when none did.
local function fitting_all(wants, budget, retry_after, bound)
  while true do
    local before = retry_after
    for i, want in ipairs(wants) do
      local more = want.is_permits and excess(want, retry_after) or 0
      if more > 0 then retry_after, bound = retry_after + more, i end
    end
    if retry_after == before then return retry_after, bound end
    local at, i = common(wants, retry_after)
    if at - budget > retry_after then retry_after, bound = at - budget, i end
  end
end
return { excess = excess, fitting_all = fitting_all }
end
