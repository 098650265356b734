-- Fixed windows of the store's clock with reservations. Twin of fixed_window.rs, which explains the rule. The states, sections and
-- runs are those of the twin. `write` packs a stored state.

local common = require 'common'
local M = { kind = 70, lease = false, born_at = 4, names = 'ticks' }

local floor, max, min, insert, remove = math.floor, math.max, math.min, table.insert, table.remove
local VERSION, MAX_HOLES, EXACT, ceil_div = common.VERSION, common.MAX_HOLES, common.EXACT, common.ceil_div

local HEAD, SECTION, RUN = '<BBBi8i8', '<i8i8i8i8i8i4', '<i8i8i8'
local MAX_SECTIONS, UNUSED, MOST, KNOWN_PAST = 4, 60000000, 1000000000000, 5000000
local MIN_PERIOD, MAX_PERIOD, MAX_COUNT = 1000, 31622400000000, 1000000000

local function new_section(period, asked) return { period = period, asked = asked, limit = 0, since = 0, source = 0, runs = {} } end

local function window_of(section, instant) return floor(instant / section.period) end

function M.used_up(rule, now, from, to)
  local first, last, run = max(window_of(rule, from), window_of(rule, now)), window_of(rule, to), ''
  if first <= last then run = struct.pack(RUN, first, last, rule.count) end
  return struct.pack(HEAD, VERSION, M.kind, 1, now, now)
    .. struct.pack(SECTION, rule.period, now, rule.count, 0, 0, #run / 24) .. run
end

local function find(runs, window)
  local low, high = 1, #runs + 1
  while low < high do
    local middle = floor((low + high) / 2)
    if runs[middle].last < window then low = middle + 1 else high = middle end
  end
  return low
end

local function count_in(section, window)
  local run = section.runs[find(section.runs, window)]
  return run and run.first <= window and run.count or 0
end

local function first_room(section, at, most)
  local runs, window = section.runs, window_of(section, at)
  local fit = window
  for i = find(runs, window), #runs do
    if runs[i].first > fit or runs[i].count <= most then break end
    fit = runs[i].last + 1
  end
  return fit == window and at or fit * section.period
end

local function allows(period, limit, other, count)
  return max(min(ceil_div(period, other) * count, MOST), limit)
end

local function holds(section, whole, made, period, cost, clock)
  local placed = whole <= made or whole % period == 0
  local known = made > section.since or (section.source == period and placed)
  local window = window_of(section, whole)
  if not known or window < window_of(section, clock) then return false end
  local count = count_in(section, window)
  return count >= cost and count < MOST
end

local function permits_in(section)
  local permits = 0
  for _, run in ipairs(section.runs) do
    permits = permits + min(run.count * (run.last - run.first + 1), MOST)
  end
  return permits
end

local function end_of(section)
  local run = section.runs[#section.runs]
  return run and (run.last + 1) * section.period or 0
end

local function forget_past(section, clock)
  local runs, window = section.runs, window_of(section, clock)
  local past = find(runs, window)
  if past > 1 then
    local kept = {}
    for i = past, #runs do kept[#kept + 1] = runs[i] end
    section.runs = kept
  end
  local run = section.runs[1]
  if run then run.first = max(run.first, window) end
end

local function join(runs, i)
  local a, b = runs[i - 1], runs[i]
  if a and b and a.last + 1 == b.first and a.count == b.count then
    a.last = b.last
    remove(runs, i)
  end
end

local function split(runs, window)
  local i = find(runs, window)
  local run = runs[i]
  if run and run.first < window then
    insert(runs, i, { first = run.first, last = window - 1, count = run.count })
    run.first = window
  end
end

local function add(section, window, permits)
  local runs = section.runs
  split(runs, window)
  split(runs, window + 1)
  local i = find(runs, window)
  local run = runs[i]
  if not run or run.first > window then
    run = { first = window, last = window, count = 0 }
    insert(runs, i, run)
  end
  run.count = min(run.count + permits, MOST)
  if run.count == 0 then return remove(runs, i) end
  join(runs, i + 1)
  join(runs, i)
end

local function bound(runs)
  while #runs > MAX_HOLES do
    local cheapest, least
    for i = #runs, 2, -1 do
      local a, b = runs[i - 1], runs[i]
      local lesser = a.count < b.count and a or b
      local differ = a.count == b.count and 0 or lesser.last - lesser.first + 1
      local wasted = differ + b.first - a.last - 1
      if not least or wasted < least then cheapest, least = i, wasted end
    end
    local b = remove(runs, cheapest)
    local a = runs[cheapest - 1]
    a.last, a.count = b.last, max(a.count, b.count)
    join(runs, cheapest)
    join(runs, cheapest - 1)
  end
end

local function converted(period, limit, others, born, clock)
  local section, old, most = new_section(period, clock), nil, -1
  for _, candidate in ipairs(others) do
    local permits = permits_in(candidate)
    if permits > most then old, most = candidate, permits end
  end
  section.since, section.source = clock, old.period
  local exact = MAX_HOLES
  for _, run in ipairs(old.runs) do
    local first, last, count = run.first, run.last, run.count
    if first * old.period < clock then
      add(section, window_of(section, clock), count)
      first = first + 1
    end
    exact = exact - (last - first + 1)
    if exact >= 0 then
      for i = first, last do add(section, window_of(section, i * old.period), count) end
    else
      count = min(count * ceil_div(period, old.period), MOST)
      first, last = window_of(section, first * old.period), window_of(section, last * old.period)
      add(section, first, count)
      if first < last then
        local runs = section.runs
        runs[#runs + 1] = { first = first + 1, last = last, count = count }
        join(runs, #runs)
      end
    end
  end
  local window = window_of(section, clock)
  local gone = window_of(old, clock) - window_of(old, max(born, window * period))
  local spare = allows(period, limit, old.period, old.limit) - limit
  local past = min(gone * old.limit - spare, limit)
  if past > 0 then add(section, window, past) end
  bound(section.runs)
  return section
end

-- sections, born, clock
local function stored(raw)
  if #raw < 19 then return nil end
  local version, kind, n, born, clock = struct.unpack(HEAD, raw)
  if version ~= VERSION or kind ~= M.kind or n < 1 or n > MAX_SECTIONS then return nil end
  if born < 0 or born > clock or clock >= EXACT then return nil end
  local sections, at = {}, 20
  for s = 1, n do
    if at + 43 > #raw then return nil end
    local period, asked, limit, since, source, length = struct.unpack(SECTION, raw, at)
    at = at + 44
    if limit < 0 or limit > MOST then return nil end
    if period < MIN_PERIOD or period > MAX_PERIOD or asked < 0 or asked > clock then return nil end
    if since < 0 or since > clock or source < 0 or source > MAX_PERIOD then return nil end
    if length < 0 or at + 24 * length - 1 > #raw then return nil end
    local section = { period = period, asked = asked, limit = limit, since = since, source = source, runs = {} }
    local before = window_of(section, clock) - 1
    for i = 1, length do
      local first, last, count = struct.unpack(RUN, raw, at)
      at = at + 24
      if first <= before or last < first or (last + 1) * period >= EXACT then return nil end
      if count < 1 or count > MOST then return nil end
      section.runs[i], before = { first = first, last = last, count = count }, last
    end
    sections[s] = section
  end
  if at ~= #raw + 1 then return nil end
  return sections, born, clock
end

function M.rule(text, from)
  local count, period = struct.unpack('<dd', text, from)
  return { count = count, period = period }
end

function M.pace(rule) return rule.period, rule.count end

function M.read(raw, now, rule)
  local open = { rule = rule, now = now, clock = now, floor = now, born = now, others = {} }
  local period = rule.period
  open.own = new_section(period, now)
  if not raw then return open end
  local sections, born, clock = stored(raw)
  if not sections then return nil end
  local written = clock
  clock = max(now, written)
  local last, own, others = 0, nil, {}
  for _, section in ipairs(sections) do
    last = max(last, end_of(section))
    if section.period == period then own = own or section else others[#others + 1] = section end
  end
  local is_known = clock < last + KNOWN_PAST
  if last <= clock and (own or not is_known) then
    if is_known then open.born = born end
    return open
  end
  open.clock, open.born, open.others = clock, born, others
  open.own = own or converted(period, rule.count, sections, born, written)
  for i = 0, #others do
    local section = others[i] or open.own
    forget_past(section, clock)
    if now < clock then open.floor = max(open.floor, window_of(section, clock) * section.period) end
  end
  return open
end

function M.earliest(open, from, cost, kept)
  if kept and kept > 0 then cost = max(min(cost + kept, open.rule.count), cost) end
  local at, own, others = max(open.now + from, open.floor), open.own, open.others
  local count, most = open.rule.count, open.rule.count - cost
  while true do
    local before = at
    at = first_room(own, at, most)
    if #others == 0 then return at - open.now, at end
    for _, other in ipairs(others) do
      at = first_room(other, at, allows(other.period, other.limit, own.period, count) - cost)
    end
    if at == before then return at - open.now, at end
  end
end

local function reset_after(open)
  local last = end_of(open.own)
  for _, section in ipairs(open.others) do last = max(last, end_of(section)) end
  return max(last - open.now, 0)
end

local function used(open)
  open.own.asked = open.clock
  if open.rule.count < MAX_COUNT then open.own.limit = open.rule.count end
  if #open.others == 0 then return end
  local others = {}
  for _, section in ipairs(open.others) do
    if open.clock - section.asked <= section.period + UNUSED and #others < MAX_SECTIONS - 1 then
      others[#others + 1] = section
    end
  end
  open.others = others
end

function M.take(open, start, cost)
  used(open)
  for i = 0, #open.others do
    local section = open.others[i] or open.own
    add(section, window_of(section, start), cost)
    bound(section.runs)
  end
  return start, 0, open.born, open.clock
end

function M.refund(open, whole, _, born, aux, cost)
  local clock, period = open.clock, open.rule.period
  if born ~= open.born or not holds(open.own, whole, aux, period, cost, clock) then return false end
  used(open)
  for i = 0, #open.others do
    local section = open.others[i] or open.own
    if holds(section, whole, aux, period, cost, clock) then
      add(section, window_of(section, whole), -cost)
      bound(section.runs)
    end
  end
  if reset_after(open) == 0 then
    local now = open.now
    open.clock, open.floor, open.born, open.others = now, now, now, {}
    open.own = new_section(open.rule.period, now)
  end
  return true
end

function M.is_taken_after(open, next)
  local last = open.own.runs[#open.own.runs]
  return last and last.last > window_of(open.own, open.now + next)
end

function M.level(open)
  local next = M.earliest(open, 0, 1)
  local count = open.rule.count
  local room = count - count_in(open.own, window_of(open.own, open.now))
  for i = 1, #open.others do
    local other = open.others[i]
    local all = allows(other.period, other.limit, open.own.period, count)
    room = min(room, all - count_in(other, window_of(other, open.now)))
  end
  return next == 0 and room or 0, next, reset_after(open)
end

M.lasts = reset_after

function M.write(open)
  local parts = { struct.pack(HEAD, VERSION, M.kind, #open.others + 1, open.born, open.clock) }
  for i = 0, #open.others do
    local section = open.others[i] or open.own
    parts[#parts + 1] = struct.pack(
      SECTION, section.period, section.asked, section.limit, section.since, section.source, #section.runs)
    for _, run in ipairs(section.runs) do parts[#parts + 1] = struct.pack(RUN, run.first, run.last, run.count) end
  end
  return table.concat(parts)
end

return M
