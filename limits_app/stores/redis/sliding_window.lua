-- Sliding window, as engine/algorithms/windows.py. The log is a string of pairs of time and running total.
-- The numbers of a limit, in this order: `entries` of the log count, from `head` on; it is kept until the second
-- `kept_until`. Parameters: window, longest time of an entry.
local FIELDS = {'forgotten', 'total', 'opened', 'last', 'oldest', 'head', 'entries', 'kept_until'}

-- Entries of the log; nil where it was evicted. Then all that it held counts until the last amount expires.
local function log_entries(state, key, head, entries)
  local log = call('GETRANGE', key, head * 16, (head + entries) * 16 - 1)
  if #log == entries * 16 then return log end
  state.oldest, state.head, state.entries = state.last, 0, 0
end

-- The first of the entries whose time (field 0) or running total (field 8) is at least `least`.
local function first_entry(log, entries, field, least)
  local low, high = 0, entries
  while low < high do
    local middle = math.floor((low + high) / 2)
    if unpack_from('<d', log, middle * 16 + field + 1) < least then low = middle + 1 else high = middle end
  end
  return low
end

-- Remove entries from the start of the log, of which `log` is the start.
local function drop_entries(state, log, count)
  state.head, state.entries = state.head + count, state.entries - count
  if state.entries == 0 then
    state.head, state.oldest = 0, state.last
  elseif count * 16 < #log then
    state.oldest = unpack_from('<d', log, count * 16 + 1)
  end
end

-- Forget amounts as old as the window; returns the time, at least that of the last amount, and the amount in use.
local function forget(state, window, key)
  local time = math.max(now, state.last)
  local oldest = time - window + 1
  if state.last < oldest then
    state.forgotten, state.head, state.entries = state.total, 0, 0
  elseif state.oldest < oldest then
    local read = math.min(state.entries, 4) -- mostly only the first ones have expired
    while state.entries > 0 and state.oldest < oldest do
      local log = log_entries(state, key, state.head, read)
      if not log then break end
      local gone = first_entry(log, read, 0, oldest)
      if gone > 0 then state.forgotten = unpack_from('<d', log, gone * 16 - 7) end
      drop_entries(state, log, gone)
      read = state.entries
    end
  end
  return time, state.total - state.forgotten
end

-- Write the entry that was open to the log, which starts again where it is empty or long or its totals are large.
local function close_entry(state, time, window, key)
  local entries = state.entries
  if entries > 0 and call('STRLEN', key) < (state.head + entries) * 16 then
    entries, state.oldest = 0, state.last -- the log was evicted
  end
  if entries > 0 and state.head < 512 and state.total <= 2251799813685248 then
    write_later('APPEND', key, pack('<dd', state.last, state.total))
  else
    local rebased, log = {}, entries > 0 and log_entries(state, key, state.head, entries)
    for index = 1, entries do
      local at, total = unpack_from('<dd', log, index * 16 - 15)
      rebased[index] = pack('<dd', at, total - state.forgotten)
    end
    if entries == 0 then state.oldest = state.last end
    state.forgotten, state.total, state.head, state.kept_until = 0, state.total - state.forgotten, 0, 0
    write_later('SET', key, table.concat(rebased) .. pack('<dd', state.last, state.total))
  end
  state.entries = entries + 1
  if state.kept_until * 1000000 < time + 2 * window then
    state.kept_until = math.floor((time + idle_us(window)) / 1000000)
    write_later('PEXPIRE', key, milliseconds(idle_us(window)))
  end
end

-- Charge an amount to a state that has forgotten old amounts.
local function charge(state, time, amount, window, step, key)
  if state.total == state.forgotten then
    state.forgotten, state.total, state.head, state.entries = 0, 0, 0, 0
    state.opened, state.oldest = time, time
  elseif time - state.opened > step then
    close_entry(state, time, window, key)
    state.opened = time
  end
  state.total, state.last = state.total + amount, time
end

local function named(numbers)
  local state = {}
  for place, field in ipairs(FIELDS) do state[field] = numbers[place + 2] end
  return state
end

local function put(numbers, state)
  for place, field in ipairs(FIELDS) do numbers[place + 2] = state[field] end
end

local function set_back(numbers, rule)
  if numbers[6] - now <= rule.a then return false end
  local _, used = forget(named(numbers), rule.a, rule.key)
  local at = used > 0 and now or 0 -- without use it is as never used
  put(numbers, {forgotten = 0, total = used, opened = at, last = at, oldest = at, head = 0, entries = 0, kept_until = 0})
  return true
end

function algorithms.s(verb, numbers, amount, rule)
  local window, key = rule.a, rule.key
  if verb == 'current' then return set_back(numbers, rule) end
  if verb == 'settle' and amount <= 0 then return 0 end
  local state = named(numbers)
  local time, used = forget(state, window, key)
  if verb == 'used' then return used end
  if verb == 'take' and amount == 0 then -- Nothing is charged, so nothing is stored: a clock may be set back.
    rule.unsaved = {unpack(numbers)}
    put(numbers, state)
    return used <= rule.capacity and (used > 0 and time + window or 0) or nil
  end
  if verb == 'take' and used + amount > rule.capacity then return nil end
  if verb == 'take' or verb == 'settle' then
    charge(state, time, math.min(amount, MOST_DEBT - used), window, rule.b, key)
  elseif verb == 'credit' then -- the oldest amounts are credited, which would have expired first
    state.forgotten = math.min(state.total - used - amount, state.total)
    local log = state.entries > 0 and log_entries(state, key, state.head, state.entries)
    if log then drop_entries(state, log, first_entry(log, state.entries, 8, state.forgotten + 1)) end
    time = state.last
  elseif used == 0 or charged_at <= time - window then -- undo: nothing is left of the charge
    return 0
  else -- undo: the entry of the charge becomes smaller
    local log = state.entries > 0 and log_entries(state, key, state.head, state.entries)
    local entries, closed = state.entries, state.forgotten
    local index = log and first_entry(log, entries, 0, charged_at) or entries
    if index > 0 then closed = unpack_from('<d', log, index * 16 - 7) end
    if index < entries then
      local left, reduced = math.min(-amount, unpack_from('<d', log, index * 16 + 9) - closed), {}
      for place = index, entries - 1 do
        local at, total = unpack_from('<dd', log, place * 16 + 1)
        reduced[#reduced + 1] = pack('<dd', at, total - left)
      end
      write_later('SETRANGE', key, (state.head + index) * 16, table.concat(reduced))
      state.total = state.total - left
    else
      state.total = math.max(state.total + amount, closed)
    end
  end
  put(numbers, state)
  return time + window
end

rejected = rejected or {}
function rejected.s(numbers, amount, rule)
  local state = named(numbers)
  local _, used = forget(state, rule.a, rule.key)
  local excess, entries = used + amount - rule.capacity, state.entries
  local log = excess > 0 and entries > 0 and log_entries(state, rule.key, state.head, entries)
  local index = log and first_entry(log, entries, 8, state.forgotten + excess) or entries
  put(numbers, state)
  if index < entries then return unpack_from('<dd', log, index * 16 + 1) end
  return 0, 0
end
