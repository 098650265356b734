-- The turns of requests that wait for concurrency permits, in the keys that a queue of requests has (fair/stored.lua). The set of
-- the limiter has the same requests in the order in which they came. Twin of waiters.rs.

local queue, stored, turns = require 'fair.queue', require 'fair.stored', require 'fair.turns'
local M = { is_full = queue.is_full }

-- The turns in KEYS[k] and the key after it; nil where it holds a foreign value. `count` requests wait.
function M.open(k, count)
  -- A loss of data does not concern turns: requests without one get permits in the order in which they came.
  local q = queue.open(k, -1, {})
  if q and count == 0 and q.len > 0 then
    -- Those that had turns were served by gateways whose configuration has none.
    q.len = 0
    stored.settle(q)
  end
  return q
end

local function forget(q, id)
  stored.forget(q, id)
  stored.settle(q)
end

function M.has(q, number) return q.len > 0 and stored.request(q, stored.id(number)) ~= nil end

-- The number and the record of the request whose turn it is; nil if none has one.
function M.first(q)
  if q.len == 0 then return nil end
  local member = turns.firsts(q)[1]
  local tenant = member and stored.tenant(q, member)
  if tenant then return tenant.head, stored.request(q, stored.id(tenant.head)) end
end

-- The class of a request if none of a higher one waits.
function M.most_urgent(q, number)
  local it = q.len > 0 and stored.request(q, stored.id(number))
  return it and turns.most_urgent(q, it.class) == it.class and it.class
end

function M.remove(q, number, is_served)
  local id = stored.id(number)
  local it = q.len > 0 and stored.request(q, id)
  if not it then return end
  if is_served then turns.serve(q, id, it) else turns.remove(q, id, it) end
  forget(q, id)
end

function M.add(q, number, ticket, deadline, turn)
  -- The number of one that a gateway without turns has removed lately.
  M.remove(q, number)
  stored.begin(q)
  q.len, q.changed = q.len + 1, true
  local it = { gateway = ticket.gateway, ticket = ticket.number, deadline = deadline, at = deadline, cost = 1 }
  it.class, it.called, it.like, it.grants = turn.class, false, '', ''
  it.tenant = turns.add(q, turn.class, turn.tenant, turn.weight, number, 1)
  stored.put_request(q, stored.id(number), it)
  stored.keep_until(q, deadline)
end

return M
