-- Executes a batch of entries in order. The function that begins in make.lua ends here.
--
--   KEYS[k]   the states, and the epoch; on a cluster the keys of one call share a {hash tag}
--   ARGV[1-3] those of plain.lua
--   ARGV[4..] the entries, each one of
--     D budget n, then n times: k kind cost enforce ARGS…    decide; ARGS are the horizon (how long after a loss of
--                                                            data earlier grants can count) in µs, then the rule's
--     T gateway number deadline, then as D                   the same with a ticket for concurrency permits; deadline
--                                                            -1: it holds one already, which an observing limiter counts.
--                                                            After the ARGS of a concurrency limiter with turns: class weight
--                                                            tenant
--     Q k w class weight tenant, then as T without its letter   the same for a request that takes turns at the w-th of its
--                                                            limiters, whose queue is KEYS[k] and KEYS[k + 1]
--     C k w number n, then n times as D                      the request of this number confirms its slot
--     V k w number n, then n times as D                      it leaves the queue
--     N k horizon                                            the tenants of the queue
--     R k kind gateway number ARGS…                          renew a lease
--     X k kind ARGS…                                         forget the state
--     G k kind cost whole ticks born aux ARGS…               refund a grant
--     P k kind ARGS…                                         look
--     Z k kind span status ARGS…                             pause for `span` µs, and look
--     M k kind most ARGS…                                    lower the level to `most`, and look
--   reply     that of plain.lua, then (ahead of an epoch) flat integers, for each entry one of
--     D  1 at 0 bound remaining next reset_after, then n times: at whole ticks born aux
--        0 at retry_after bound remaining next reset_after   refused; nothing is written
--        2 at 0 bound remaining next reset_after deadline ask_after   waits for a concurrency permit
--     Q, C  as D; the part of the w-th limiter is wait number 0 -1 0 if the request waits for its turn
--     V     1 left | 0 it did not wait
--     N     n, then n times: name class weight waiting granted
--     G, R, X  1 refunded, renewed, forgotten | 0 there was nothing | 2 refunded, and a waiter was notified
--     P, Z, M  1 remaining next reset_after
--     D, P, Z, M of a paused limiter  10 more, and after reset_after the µs that the pause still takes
--     any -1 k                                               KEYS[k] holds a foreign value

end

local i = 4

local function next_arg()
  i = i + 1
  return args[i - 1]
end

local function next_number()
  i = i + 1
  return tonumber(args[i - 1])
end

-- The state that the rule at args[i] asks for, and the rule.
local function next_state(k, algorithm)
  local horizon, rule = next_number(), algorithm.rule(args, i)
  i = i + algorithm.args
  return open(k, algorithm, rule, horizon), rule
end

-- The limiters of a request; and the number of a key with a foreign value.
local function next_wants()
  local wants, foreign = {}, nil
  for w = 1, next_number() do
    local k, algorithm = next_number(), lazy[next_number()]
    local cost, enforce = next_number(), next_arg() == '1'
    local state, rule = next_state(k, algorithm)
    if not state then foreign = foreign or k end
    local is_permits = enforce and not algorithm.lease
    wants[w] = { state = state, cost = cost, enforce = enforce, is_permits = is_permits, start = 0 }
    if rule.queue then wants[w].turn = { class = next_number(), weight = next_number(), tenant = next_arg() } end
  end
  return wants, foreign
end

local function next_ticket()
  return { gateway = next_number(), number = next_number(), deadline = next_number() }
end

while i <= #args do
  local what = next_arg()
  if what == 'D' or what == 'T' then
    local ticket = what == 'T' and next_ticket() or nil
    local budget = next_number()
    local wants, foreign = next_wants()
    if foreign then
      push(-1, foreign)
    else
      push_decided(wants, decide(wants, budget, ticket))
    end
  elseif what == 'Q' then
    local k, w = next_number(), next_number()
    local newcomer = {
      class = next_number(), weight = next_number(), tenant = next_arg(), gateway = 0, ticket = 0, deadline = 0, like = '',
      cost = 0, at = 0, called = false, grants = '',
    }
    local ticket, budget = next_ticket(), next_number()
    newcomer.gateway, newcomer.ticket = ticket.gateway, ticket.number
    local wants, foreign = next_wants()
    if foreign then push(-1, foreign) else lazy.steps.decide(k, w, newcomer, wants, budget, ticket) end
  elseif what == 'C' or what == 'V' then
    local k, w, number = next_number(), next_number(), next_number()
    local wants, foreign = next_wants()
    local step = lazy.steps[what == 'C' and 'confirm' or 'leave']
    if foreign then push(-1, foreign) else step(k, w, number, wants) end
  elseif what == 'N' then
    lazy.steps.tenants(next_number(), next_number())
  elseif what == 'G' then
    local k, algorithm = next_number(), lazy[next_number()]
    local cost, whole, ticks = next_number(), next_number(), next_number()
    local born, aux = next_number(), next_number()
    local state = next_state(k, algorithm)
    if not state then
      push(-1, k)
    else
      local given = lazy.adjust.give_back(state, cost, whole, ticks, born, aux)
      push(state.open.handed_over and 2 or given and 1 or 0)
    end
  elseif what == 'R' then
    local k, algorithm = next_number(), lazy[next_number()]
    local gateway, number = next_number(), next_number()
    local state = next_state(k, algorithm)
    if not state then
      push(-1, k)
    else
      local renewed = algorithm.renew(state.open, gateway, number)
      state.dirty = true
      push(renewed and 1 or 0)
    end
  elseif what == 'X' then
    local k, algorithm = next_number(), lazy[next_number()]
    local state = next_state(k, algorithm)
    local gate = state and state.open.gate
    if gate and gate.stop > now then lazy.gates.publish(state.key, 0, gate.status) end
    if state and algorithm.forget then
      state.dirty = true
      push(algorithm.forget(state.open) and 1 or 0)
    else
      -- The decisions that this call made on the state before are dropped with it.
      if state then state.dirty, state.has_new_gate = false, false end
      states[k] = nil
      local gone
      if state then
        gone = lazy.vacate(algorithm, KEYS[k], now, state.open.rule, state.horizon)
      else
        gone = redis.call('DEL', KEYS[k]) == 1
      end
      push(gone and 1 or 0)
    end
  else
    local k, algorithm = next_number(), lazy[next_number()]
    local span, status, most
    if what == 'Z' then span, status = next_number(), next_number() end
    if what == 'M' then most = next_number() end
    local state = next_state(k, algorithm)
    if state and span then lazy.gates.pause(state, span, status) end
    if state and most then lazy.adjust.lower(state, most) end
    if not state then
      push(-1, k)
    else
      local remaining, next, reset_after, paused = level_of(state, true)
      push(paused > 0 and 11 or 1, remaining)
      push(next, reset_after)
      if paused > 0 then push(paused) end
    end
  end
end

if queues then lazy.queue.save_all() end
for u = 1, #used do
  local state = used[u]
  if state.opened and not state.algorithm.lease then lazy.adjust.publish(state) end
  save(state)
end
reply[#reply + 1] = new_epoch
return reply
