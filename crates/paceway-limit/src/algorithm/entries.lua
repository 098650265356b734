-- Executes a batch of entries in order. The function that begins in make.lua ends here.
--
--   KEYS[k]   the states, and the epoch; on a cluster the keys of one call share a {hash tag}
--   ARGV[1-3] those of plain.lua
--   ARGV[4]   the entries in one string: the letter of an entry, numbers as doubles (8 bytes), and tenants after the double of
--             their length; all little-endian. Absent if there is none. Each is one of
--     D budget n, then n times: k kind cost enforce ARGS…    decide; ARGS are the horizon (how long after a loss of
--                                                            data earlier grants can count) in µs, then the rule's
--     B requests reach jump, then as D with one limiter      the same, and a block for the requests after this one
--     T gateway number deadline, then as D                   the same with a ticket for concurrency permits; deadline
--                                                            -1: it holds one already, which an observing limiter counts.
--                                                            After the ARGS of a concurrency limiter with turns: class weight
--                                                            tenant
--     U budget, then n, n times as D, and n times at whole ticks born aux   the same in place of these permits
--     Q k w class weight tenant, then as T without its letter   the same for a request that takes turns at the w-th of its
--                                                            limiters, whose queue is KEYS[k] and KEYS[k + 1]
--     C k w number n, then n times as D                      the request of this number confirms its slot
--     V k w number n, then n times as D                      it leaves the queue
--     N k horizon                                            the tenants of the queue
--     R k kind gateway number ARGS…                          renew a lease
--     X k kind ARGS…                                         forget the state
--     G k kind cost whole ticks born aux ARGS…               refund a grant
--     P k kind ARGS…                                         look
--     Z k kind span status empties ARGS…                     pause for `span` µs, and look; 0: the level stays
--     M k kind most ARGS…                                    lower the level to `most`, and look
--     K k kind cost ARGS…                                    charge permits that were used already
--   ARGV[5]   the end of the channel of pauses, such as `:1` in database 1: messages know no databases. Absent in database 0
--   reply     that of plain.lua, then integers in doubles, for each entry one of what follows. With tenants or a new epoch the
--             reply is a list of this string, the names of the tenants, and the epoch
--     D  1 at 0 bound remaining next reset_after, then n times: at whole ticks born aux
--        0 at retry_after bound remaining next reset_after   refused; nothing is written
--        2 at 0 bound remaining next reset_after deadline ask_after   waits for a concurrency permit
--     B     as D, then for how long the first permit of the block can be used, µs; -1: no block
--     U     as D; 0 if the request keeps its permits
--     Q, C  as D; the part of the w-th limiter is wait number 0 -1 0 if the request waits for its turn
--     V     1 left | 0 it did not wait
--     N     n, then n times: class weight waiting granted; the name is among the texts
--     G, R, X  1 refunded, renewed, forgotten | 0 there was nothing | 2 refunded, and a waiter was notified
--     P, Z, M  1 remaining next reset_after
--     K     1 and how many permits the state does not take yet
--     D, P, Z, M of a paused limiter  10 more, and after reset_after the µs that the pause still takes
--     any -1 k                                               KEYS[k] holds a foreign value

end

-- `from` is where the next entry, or the next part of one, begins (fair/plain.lua).

local function next_number()
  local number
  number, from = unpack_from('<d', entries, from)
  return number
end

-- The state that the next rule asks for.
local function next_state(k, algorithm)
  local horizon, rule = next_number(), nil
  rule, from = algorithm.rule(entries, from)
  return open(k, algorithm, rule, horizon)
end

-- The `n` limiters of a request; and the number of a key with a foreign value.
local function next_wants(n)
  local wants, foreign = {}, nil
  for w = 1, n do
    local k, kind, cost, enforce, horizon, rule
    k, kind, cost, enforce, horizon, from = unpack_from('<ddddd', entries, from)
    local algorithm = lazy[kind]
    rule, from = algorithm.rule(entries, from)
    local state, enforces = open(k, algorithm, rule, horizon), enforce == 1
    if not state then foreign = foreign or k end
    local is_permits = enforces and not algorithm.lease
    wants[w] = { state = state, cost = cost, enforce = enforces, is_permits = is_permits, start = 0 }
    if rule.queue then
      local class, weight, tenant
      class, weight, tenant, from = unpack_from('<dddc0', entries, from)
      wants[w].turn = { class = class, weight = weight, tenant = tenant }
    end
  end
  return wants, foreign
end

while from <= #entries do
  local what
  what, from = unpack_from('<c1', entries, from)
  if what == 'D' or what == 'T' then
    local ticket, budget, n
    if what == 'T' then
      ticket = { gateway = next_number(), number = next_number(), deadline = next_number() }
    end
    budget, n, from = unpack_from('<dd', entries, from)
    local wants, foreign = next_wants(n)
    if foreign then
      push(-1, foreign)
    else
      push_decided(wants, decide(wants, budget, ticket))
    end
  elseif what == 'B' then
    local requests, reach, jump, budget, n
    requests, reach, jump, budget, n, from = unpack_from('<ddddd', entries, from)
    local wants, foreign = next_wants(n)
    if foreign then
      push(-1, foreign)
    else
      -- Twin of token_bucket/block.rs.
      local want = wants[1]
      local state, open = want.state, want.state.open
      local rule, permits, start = open.rule, requests * want.cost, nil
      local has_blocks = state.algorithm.kind == 84 and want.enforce and not open.gate and rule.most >= 4 and not open.credit
      if has_blocks and requests > 1 and permits <= rule.most then
        local full = rule.most * rule.per
        start = open.tail
        if start < reach * rule.den then start = math.max(start, jump * rule.den) end
        if start + permits * rule.per > full - floor(full / 4) then start = nil end
      end
      if start then
        local whole, ticks, born, aux = state.algorithm.take(open, start, permits)
        state.dirty = true
        push_decision(1, 0, 0, 1, level_of(state, true))
        push_part({ 0, whole, ticks, born, aux })
        push(floor(start / rule.den))
      else
        push_decided(wants, decide(wants, budget, nil))
        push(-1)
      end
    end
  elseif what == 'U' then
    local budget, n = next_number(), next_number()
    local wants, foreign = next_wants(n)
    local parts = {}
    for w = 1, n do parts[w] = { next_number(), next_number(), next_number(), next_number(), next_number() } end
    if foreign then push(-1, foreign) else lazy.adjust.move_up(wants, budget, parts) end
  elseif what == 'Q' then
    local k, w, class, weight, tenant, gateway, number, deadline, budget, n
    k, w, class, weight, tenant, gateway, number, deadline, budget, n, from = unpack_from('<dddddc0ddddd', entries, from)
    local ticket = { gateway = gateway, number = number, deadline = deadline }
    local newcomer = {
      class = class, weight = weight, tenant = tenant, gateway = gateway, ticket = number, deadline = 0, like = '',
      cost = 0, at = 0, called = false, grants = '',
    }
    local wants, foreign = next_wants(n)
    if foreign then push(-1, foreign) else lazy.steps.decide(k, w, newcomer, wants, budget, ticket) end
  elseif what == 'C' or what == 'V' then
    local k, w, number, n
    k, w, number, n, from = unpack_from('<dddd', entries, from)
    local wants, foreign = next_wants(n)
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
  elseif what == 'K' then
    local k, algorithm, cost = next_number(), lazy[next_number()], next_number()
    local state = next_state(k, algorithm)
    if state then push(1, lazy.adjust.charge(state, cost)) else push(-1, k) end
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
    -- Requests wait for the end of a pause, or for slots of the state.
    if state and (gate or not algorithm.lease) then lazy.gates.publish(state.key, 0, gate and gate.status or 0) end
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
    local span, status, empties, most
    if what == 'Z' then span, status, empties = next_number(), next_number(), next_number() end
    if what == 'M' then most = next_number() end
    local state = next_state(k, algorithm)
    if state and span then lazy.gates.pause(state, span, status, empties) end
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

-- Lua passes a few thousand arguments at most.
for first = 1, #reply, 1000 do
  local last = math.min(first + 999, #reply)
  told = told .. pack('<' .. string.rep('d', last - first + 1), unpack(reply, first, last))
end
if not new_epoch and not texts then return told end
texts = texts or {}
table.insert(texts, 1, told)
texts[#texts + 1] = new_epoch
return texts
