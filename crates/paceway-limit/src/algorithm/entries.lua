-- One call: it executes a list of entries in order, all at one instant.
--
--   KEYS      see call.lua
--   ARGV      the instant and the epoch that the gateway knows (epoch.lua), the entries, and the end of the channel of pauses (call.lua)
--   reply     see replies.lua
--
-- An entry is its letter, how many limiters it has, these limiters, and its own numbers and texts, as the table in wire.rs lists them.
-- All numbers are doubles, little-endian; a text comes after the double of its length.
--
-- A limiter is the number of its key, that of the first of the two keys of its turns (0 without turns), and a text that is the
-- same in all calls: its kind, cost, whether it enforces (1, 2 if it has bounds, and 4 if it has floors), its horizon (how long after a
-- loss of data earlier grants can count) in µs, the permits kept back from normal and from low priorities, the bounds, and its rule. With
-- turns the class, the weight and the tenant of the request follow.

local call, common, epoch, gates, replies = require 'call', require 'common', require 'epoch', require 'gate', require 'replies'
local reserve, states, wire = require 'reserve', require 'state', require 'wire'

local redis, unpack_from = redis, struct.unpack
local push, push_decided, push_foreign = replies.push, replies.push_decided, replies.push_foreign

-- The modules of the algorithms by their letters. A script without functions makes each module that it names, so that these and
-- those of rare steps are named where they are used.
local ALGORITHMS = {
  C = 'concurrency', D = 'calendar_window', F = 'fixed_window', L = 'leaky_bucket', S = 'sliding_window', T = 'token_bucket',
  W = 'warm_up',
}

-- Limiters and rules by their texts, so that each is read once. They are forgotten when there are too many.
local MOST_KNOWN = 1000
local limiters, rules, known = {}, {}, 0

local function read_limiter(text)
  local kind, cost, flags, horizon, from = unpack_from('<c1ddd', text)
  local algorithm, floors = require(ALGORITHMS[kind]), nil
  if flags >= 4 then
    local normal, low, after = unpack_from('<dd', text, from)
    floors, from = { 0, normal, low }, after
  end
  -- Limiters of one rule have one table of it, whatever their requests cost: entries of a call are compared by it.
  local own = kind .. string.sub(text, from)
  local rule, enforce = rules[own] or gates.rule(algorithm, flags % 4 >= 2, text, from), flags % 2 == 1
  local limiter = {
    algorithm = algorithm, rule = rule, cost = cost, enforce = enforce, horizon = horizon, floors = floors,
    is_permits = enforce and not algorithm.lease,
  }
  rules[own], limiters[text], known = rule, limiter, known + 1
  return limiter
end

-- Returns the want of a request for the limiter at `from`, and where the next limiter begins. Where a key holds a foreign value, the
-- want has its number, `foreign`, and no state.
local function read_want(entries, from)
  local k, queue, text, turn
  k, queue, text, from = unpack_from('<dddc0', entries, from)
  if queue > 0 then
    local class, weight, tenant
    class, weight, tenant, from = unpack_from('<dddc0', entries, from)
    turn = { class = class, weight = weight, tenant = tenant }
  end
  local limiter = limiters[text] or read_limiter(text)
  local state, foreign = states.open(k, limiter, queue)
  return {
    k = k, state = state, foreign = foreign, cost = limiter.cost, enforce = limiter.enforce,
    is_permits = limiter.is_permits, start = 0, turn = turn, kept = limiter.floors and limiter.floors[turn and turn.class or 2] or 0,
  }, from
end

local steps = {}

function steps.reserve(wants, budget) push_decided(wants, reserve.decide(wants, budget, nil)) end

-- Requests that ask one token bucket for the same cost each. Where it is one instant, without holes, all of them are one step. The
-- gateway, which knows their budgets, repeats the decisions by the same rule from the state before.
function steps.reserve_alike(wants, requests, least, budgets)
  local want = wants[1]
  local open = want.state.open
  if want.enforce and (not open.gate or gates.is_idle(open.gate)) then
    local tail, born = open.tail, open.born
    local admitted = want.state.algorithm.take_alike(open, want.cost, requests, least, budgets)
    if admitted then
      if admitted > 0 then want.state.dirty = true end
      replies.push_pair(1, admitted)
      return replies.push_pair(tail, born)
    end
  end
  push(0)
  for i = 0, requests - 1 do
    local budget = budgets == '' and least or unpack_from('<d', budgets, 8 * i + 1)
    push_decided(wants, reserve.decide(wants, budget, nil))
  end
end

function steps.reserve_block(wants, budget, requests, reach, jump)
  local want = wants[1]
  local state = want.state
  local start = require('token_bucket.block').start(want, requests, reach, jump)
  if start then
    local parts = { { 0, states.take(state, start, requests * want.cost, 0) } }
    local last = start + (requests - 1) * want.cost * state.rule.per
    state.algorithm.promise(state.open, math.floor(last / state.rule.den), last)
    push_decided(wants, 0, 0, 1, parts)
    push(math.floor(start / state.rule.den))
  else
    push_decided(wants, reserve.decide(wants, budget, nil))
    push(-1)
  end
end

function steps.reserve_with_ticket(wants, budget, gateway, number, deadline)
  local ticket = { gateway = gateway, number = number, deadline = deadline }
  push_decided(wants, reserve.decide(wants, budget, ticket))
end

function steps.reserve_in_turn(wants, budget, gateway, number, deadline, at)
  local ticket, turn = { gateway = gateway, number = number, deadline = deadline }, wants[at].turn
  local newcomer = {
    class = turn.class, weight = turn.weight, tenant = turn.tenant, gateway = gateway, ticket = number, deadline = 0, like = '',
    cost = 0, at = 0, called = false, grants = '',
  }
  require('fair.steps').decide(wants, at, newcomer, budget, ticket)
end

-- A request that can be made in several ways, each with wants of its own.
function steps.choose(wants, budget, has_ticket, gateway, number, deadline, ways)
  local ticket = has_ticket == 1 and { gateway = gateway, number = number, deadline = deadline } or nil
  local chosen, own = require('reserve.way').earliest(wants, math.min(budget, common.MAX_BUDGET), ticket, ways)
  push(chosen)
  if not ticket then return steps.reserve(own, budget) end
  for w = 1, #own do
    if own[w].turn and own[w].is_permits then return steps.reserve_in_turn(own, budget, gateway, number, deadline, w) end
  end
  steps.reserve_with_ticket(own, budget, gateway, number, deadline)
end

function steps.confirm(wants, at, number) require('fair.steps').confirm(wants, at, number) end

function steps.leave(wants, at, number) require('fair.steps').leave(wants, at, number) end

function steps.tenants(_, queue, horizon) require('fair.steps').tenants(queue, horizon) end

function steps.move_up(wants, budget, grants)
  local parts = {}
  for w = 1, #wants do parts[w] = { unpack_from('<ddddd', grants, 40 * w - 39) } end
  require('reserve.adjust').move_up(wants, budget, parts)
end

function steps.refund(wants, whole, ticks, born, aux)
  local state = wants[1].state
  local given = require('reserve.adjust').refund(state, wants[1].cost, whole, ticks, born, aux)
  push(state.open.handed_over and 2 or given and 1 or 0)
end

function steps.charge(wants) replies.push_pair(1, require('reserve.adjust').charge(wants[1].state, wants[1].cost)) end

function steps.renew(wants, gateway, number)
  local state = wants[1].state
  state.dirty = true
  push(state.algorithm.renew(state.open, gateway, number) and 1 or 0)
end

function steps.forget(wants)
  local k, state, foreign = wants[1].k, wants[1].state, wants[1].foreign
  if foreign then return push(redis.call('DEL', call.keys[foreign])) end
  local algorithm, gate = state.algorithm, state.open.gate
  -- Requests wait for the end of a pause, or for slots of the state.
  if gate or not algorithm.lease then gates.publish(state.key, 0, gate and gate.status or 0) end
  if algorithm.forget then
    state.dirty = true
    return push(algorithm.forget(state.open) and 1 or 0)
  end
  states.drop(k)
  push(states.vacate(state) and 1 or 0)
end

function steps.look(wants) replies.push_level(1, states.level(wants[1].state, true)) end

function steps.pause(wants, span, status, unit, ago)
  gates.pause(wants[1].state, span, status, unit, ago)
  steps.look(wants)
end

function steps.lower(wants, most, waiting, next, span)
  local state = wants[1].state
  if span == 0 then
    require('reserve.adjust').lower(state, most)
  elseif not state.algorithm.lease then
    gates.remain(state, most, waiting, next, span)
  end
  steps.look(wants)
end

-- Executes the entries of a call, and returns its reply.
return function(keys, args)
  call.keys, call.database, call.queues = keys, args[4] or '', nil
  -- Not later: entries of one call are compared by the tables of their rules.
  if known >= MOST_KNOWN then limiters, rules, known = {}, {}, 0 end
  local new_epoch = epoch.begin(args[1], args[2])
  states.begin()
  replies.begin(call.now)
  local entries, from = args[3], 1
  while from <= #entries do
    local letter, count, rest = unpack_from('<c1d', entries, from)
    local wants, foreign = {}, nil
    from = rest
    for w = 1, count do
      wants[w], from = read_want(entries, from)
      foreign = foreign or wants[w].foreign
    end
    local entry = wire[letter]
    if foreign and entry.step ~= 'forget' then
      push_foreign(foreign)
    else
      steps[entry.step](wants, unpack_from(entry.form, entries, from))
    end
    from = from + entry.size
    if entry.has_text then from = from + 8 + unpack_from('<d', entries, from) end
  end
  if call.queues then require('fair.queue').save_all() end
  states.save_all()
  return replies.finish(new_epoch)
end
