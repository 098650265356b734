if part == 'vacate' then
-- Deletes a state and keeps its `gate`, so that its limiter is unused. After a loss an absent state counts as
-- lost until its horizon ends: until then an unused state is kept that is born after the loss. Returns whether
-- there is a state now, or was.
return function(algorithm, key, now, rule, horizon, gate)
  local gone = redis.call('DEL', key) == 1
  local unused, left = '', 0
  if lost_at > 0 and horizon >= 0 then
    local _, _, reset_after = algorithm.level(load(algorithm, key, rule, horizon))
    if reset_after > 0 then
      unused = algorithm.unused and algorithm.unused(rule, now) or algorithm.used_up(rule, now, 0, 0)
      left = reset_after
    end
  end
  if gate then left = math.max(left, lazy.gates.ends(gate) - now) end
  if left <= 0 then return gone end
  redis.call('SET', key, (gate and lazy.gates.pack(gate) or '') .. unused, 'PX', lifetime(left))
  return true
end
end
