-- The state of a sliding window in its key: how it is read, in pieces where it is long, and how it is written. The Rust
-- half has no such file, because the memory store keeps the state as it is.

local call, common, gates, states = require 'call', require 'common', require 'gate', require 'state'
local laws, ring = require 'sliding_window.laws', require 'sliding_window.state'
local M = {}

local redis, math, pack, unpack_from = redis, math, struct.pack, struct.unpack
local VERSION, KIND, MAX_HOLES = common.VERSION, 83, common.MAX_HOLES
local HEAD_SIZE, ENTRY, SIZE, CHUNK, KNOWN_PAST = ring.HEAD_SIZE, ring.ENTRY, ring.SIZE, ring.CHUNK, ring.KNOWN_PAST
local find_last, grained, is_past, last_of_all = ring.find_last, ring.grained, ring.is_past, laws.last_of_all
local HEAD = '<BBi8i8i8i8i8i8i8i8i8i8i4i4I2I2'
-- The number of slots up to which a state is read and written whole.
local SMALL = 24

-- The state after a loss of data: `count` permits, all at the last instant that can have been promised before
-- the loss.
local function use_up(open, horizon)
  local at, count = grained(open.rule, call.lost_at + horizon), open.rule.count
  open.fresh, open.born, open.floor, open.base, open.most = false, math.max(open.now, call.lost_at), 0, 0, count
  open.span, open.closed_count, open.closed_span = open.rule.span, count, open.rule.span
  open.first, open.count, open.written, open.new = 0, 1, 0, { at, count }
  open.chunk, open.from, open.to, open.whole, open.ahead = '', 0, 0, true, {}
  open.others, open.laws = nil, nil
  find_last(open)
  open.fresh = is_past(open)
  if open.fresh and laws.tells(open) then open.gone_at, open.gone = at, count end
  return open
end

-- nil for a value that this version did not write
function M.load(state)
  local key, rule, horizon, now = state.key, state.rule, state.horizon, call.now
  local stored = states.ask('GETRANGE', key, 0, gates.SIZE + HEAD_SIZE + CHUNK * SIZE - 1)
  if not stored then return nil end
  local open = { rule = rule, now = now, key = key, fresh = true, ahead = {}, hint = 0, skip = 0 }
  local raw = stored
  if string.byte(stored) == 80 then -- 'P'
    open.gate, raw = gates.read(state.algorithm, key, stored, rule)
    if open.gate then open.skip = gates.SIZE end
  end
  if not raw or raw == '' then return states.is_lost(nil, horizon) and use_up(open, horizon) or open end
  if #raw < HEAD_SIZE then return nil end
  local version, kind, born, floor, base, last, total, span, most, closed_count, closed_span, lives, first, count,
    ahead, others = unpack_from(HEAD, raw)
  if version ~= VERSION or kind ~= KIND then return nil end
  if first < 0 or count < 0 or ahead > MAX_HOLES or span < 1 or base < 0 or total < base then return nil end
  if closed_count < 1 or closed_span < 1 or others > laws.MAX_NUMBERS / 2 then return nil end
  local slots = first + count + ahead + others
  if slots <= CHUNK and #raw < HEAD_SIZE + slots * SIZE then return nil end
  open.exists = true
  if states.is_lost(born, horizon) then return use_up(open, horizon) end
  open.chunk, open.from, open.to = string.sub(raw, HEAD_SIZE + 1), 0, math.floor((#raw - HEAD_SIZE) / SIZE)
  if ahead + others > 0 then
    local its_slots = open.chunk
    local from = (first + count) * SIZE
    if slots > CHUNK then
      from = open.skip + HEAD_SIZE + from
      its_slots = redis.call('GETRANGE', key, from, open.skip + HEAD_SIZE + slots * SIZE - 1)
      from = 0
    end
    if #its_slots < from + (ahead + others) * SIZE then return nil end
    for i = 0, ahead - 1 do
      open.ahead[2 * i + 1], open.ahead[2 * i + 2] = unpack_from(ENTRY, its_slots, from + SIZE * i + 1)
    end
    if others > 0 then
      open.others = {}
      for i = 0, others - 1 do
        local a, b = unpack_from(ENTRY, its_slots, from + SIZE * (ahead + i) + 1)
        -- The instant of a last grant has nothing beside it.
        if a < 1 or b < (i > 0 and i % 2 == 0 and 0 or 1) then return nil end
        open.others[2 * i + 1], open.others[2 * i + 2] = a, b
      end
    end
  end
  open.last, open.span, open.total = last, span, total
  open.closed_count, open.closed_span = closed_count, closed_span
  local is_same = closed_count == rule.count and closed_span == rule.span
  local gone = is_past(open)
  if gone then
    local knows = last_of_all(open) + open.span + KNOWN_PAST > now
    if knows then
      local gone_number = total
      for i = 2, #open.ahead, 2 do gone_number = gone_number + open.ahead[i] end
      open.gone_at, open.gone = last_of_all(open), gone_number
    end
    if not knows or (is_same and others == 0) or open.gone_at + rule.span <= now then
      open.ahead, open.others = {}, nil
      return open
    end
  end
  open.fresh, open.born, open.floor, open.base = false, born, floor, base
  open.span, open.most = span, most
  open.lives, open.first, open.count, open.written, open.new = lives, first, count, count, {}
  if gone then
    -- The state is past for the rules that wrote it, and not for this one with its longer window.
    open.floor, open.base, open.ahead = open.gone_at, open.gone, {}
    open.first, open.count, open.written = first + count, 0, 0
    find_last(open)
    return open
  end
  if not is_same then
    local popped = ring.pop_while(open, function(at) return at > now end)
    for i = 1, #popped, 2 do ring.insert_ahead(open, popped[i], popped[i + 1]) end
  end
  if not is_same or others > 0 then
    open.laws = {}
    if last_of_all(open) + closed_span > now then laws.beside(open.laws, rule, closed_count, closed_span) end
    for i = 3, open.others and #open.others or 0, 4 do
      local count_, span_, last_ = open.others[i], open.others[i + 1], open.others[i + 2]
      if last_ + span_ > now then laws.beside(open.laws, rule, count_, span_) end
    end
  end
  return open
end

local function pack_all(list)
  local parts = {}
  for i = 1, #list, 2 do parts[#parts + 1] = pack(ENTRY, list[i], list[i + 1]) end
  return table.concat(parts)
end

local function head(open)
  return pack(
    HEAD, VERSION, KIND, open.born, open.floor, open.base, open.last, open.total, open.span,
    open.most, open.closed_count, open.closed_span, open.lives, open.first, open.count, #open.ahead / 2,
    open.others and #open.others / 2 or 0)
end

-- The stored form of a state that is born now and of which no permit is taken.
function M.unused(rule, now)
  return head({
    born = now, floor = 0, base = 0, last = 0, total = 0, span = rule.span, most = rule.count,
    closed_count = rule.count, closed_span = rule.span, lives = now, first = 0, count = 0, ahead = {},
  })
end

function M.save(state)
  local open, key, ttl = state.open, state.key, 0
  if not open.fresh then ttl = last_of_all(open) + open.span - open.now end
  local gate = open.gate
  if ttl <= 0 then
    if open.exists or gate then states.vacate(state, gate) end
    return
  end
  if gate then ttl = math.max(ttl, gates.ends(gate) - open.now) end
  local tail = pack_all(open.new) .. pack_all(open.ahead)
  local slots = open.count + #open.ahead / 2
  if open.others then
    tail, slots = tail .. pack_all(open.others), slots + #open.others / 2
  end
  local skip, before = gate and gates.SIZE or 0, gate and gates.pack(gate) or ''
  if open.whole or slots <= SMALL or open.first > slots + 64 or skip ~= open.skip then
    local kept = ''
    if open.written > 0 then
      local first, last = open.first, open.first + open.written
      if first >= open.from and last <= open.to then
        kept = string.sub(open.chunk, SIZE * (first - open.from) + 1, SIZE * (last - open.from))
      else
        local from = open.skip + HEAD_SIZE
        kept = redis.call('GETRANGE', key, from + SIZE * first, from + SIZE * last - 1)
      end
    end
    open.first, open.lives = 0, open.now + ttl
    redis.call('SET', key, before .. head(open) .. kept .. tail, 'PX', common.lifetime(ttl))
    return
  end
  -- The lifetime is set longer than needed, so that it is not set again each time.
  local longer = open.now + ttl > open.lives
  if longer then open.lives = open.now + ttl + math.floor(ttl / 4) end
  if tail ~= '' then
    redis.call('SETRANGE', key, skip + HEAD_SIZE + SIZE * (open.first + open.written), tail)
  end
  redis.call('SETRANGE', key, 0, before .. head(open))
  if longer then redis.call('PEXPIRE', key, common.lifetime(open.lives - open.now)) end
end

return M
