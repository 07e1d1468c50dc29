-- Sliding window, as core/algorithms/sliding_window.py. The log is a string of pairs of time and running total.
-- The numbers of a limit: ENTRIES of the log count, from HEAD on; it is kept until the second KEPT_UNTIL.
local FORGOTTEN, TOTAL, OPENED, LAST, OLDEST, HEAD, ENTRIES, KEPT_UNTIL = 1, 2, 3, 4, 5, 6, 7, 8

-- Entries of the log; nil where it was evicted. Then all that it held counts until the last amount expires.
local function log_entries(state, key, head, entries)
  local log = call('GETRANGE', key, head * 16, (head + entries) * 16 - 1)
  if #log == entries * 16 then return log end
  state[OLDEST], state[HEAD], state[ENTRIES] = state[LAST], 0, 0
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
  state[HEAD], state[ENTRIES] = state[HEAD] + count, state[ENTRIES] - count
  if state[ENTRIES] == 0 then
    state[HEAD], state[OLDEST] = 0, state[LAST]
  elseif count * 16 < #log then
    state[OLDEST] = unpack_from('<d', log, count * 16 + 1)
  end
end

-- Forget amounts as old as the window; returns the time, at least that of the last amount, and the amount in use.
local function forget(state, window, key)
  local time = math.max(now, state[LAST])
  local oldest = time - window + 1
  if state[LAST] < oldest then
    state[FORGOTTEN], state[HEAD], state[ENTRIES] = state[TOTAL], 0, 0
  elseif state[OLDEST] < oldest then
    local read = math.min(state[ENTRIES], 4) -- mostly only the first ones have expired
    while state[ENTRIES] > 0 and state[OLDEST] < oldest do
      local log = log_entries(state, key, state[HEAD], read)
      if not log then break end
      local gone = first_entry(log, read, 0, oldest)
      if gone > 0 then state[FORGOTTEN] = unpack_from('<d', log, gone * 16 - 7) end
      drop_entries(state, log, gone)
      read = state[ENTRIES]
    end
  end
  return time, state[TOTAL] - state[FORGOTTEN]
end

-- Write the entry that was open to the log, which starts again where it is empty or long or its totals are large.
local function close_entry(state, time, window, key)
  local entries = state[ENTRIES]
  if entries > 0 and call('STRLEN', key) < (state[HEAD] + entries) * 16 then
    entries, state[OLDEST] = 0, state[LAST] -- the log was evicted
  end
  if entries > 0 and state[HEAD] < 512 and state[TOTAL] <= 2251799813685248 then
    write_later('APPEND', key, pack('<dd', state[LAST], state[TOTAL]))
  else
    local rebased, log = {}, entries > 0 and log_entries(state, key, state[HEAD], entries)
    for index = 1, entries do
      local at, total = unpack_from('<dd', log, index * 16 - 15)
      rebased[index] = pack('<dd', at, total - state[FORGOTTEN])
    end
    if entries == 0 then state[OLDEST] = state[LAST] end
    state[FORGOTTEN], state[TOTAL], state[HEAD], state[KEPT_UNTIL] = 0, state[TOTAL] - state[FORGOTTEN], 0, 0
    write_later('SET', key, table.concat(rebased) .. pack('<dd', state[LAST], state[TOTAL]))
  end
  state[ENTRIES] = entries + 1
  if state[KEPT_UNTIL] * 1000000 < time + 2 * window then
    state[KEPT_UNTIL] = math.floor((time + idle_us(window)) / 1000000)
    write_later('PEXPIRE', key, milliseconds(idle_us(window)))
  end
end

-- Charge an amount to a state that has forgotten old amounts.
local function charge(state, time, amount, window, step, key)
  if state[TOTAL] == state[FORGOTTEN] then
    state[FORGOTTEN], state[TOTAL], state[HEAD], state[ENTRIES] = 0, 0, 0, 0
    state[OPENED], state[OLDEST] = time, time
  elseif time - state[OPENED] > step then
    close_entry(state, time, window, key)
    state[OPENED] = time
  end
  state[TOTAL], state[LAST] = state[TOTAL] + amount, time
  return time + window
end

local function state_of(record, at) return {unpack(record, at, at + KEPT_UNTIL - 1)} end
local function put(record, at, state)
  for field = 1, KEPT_UNTIL do record[at + field - 1] = state[field] end
end

algorithms.sliding_window = {
  take = function(record, at, amount, capacity, window, step, key)
    local state = state_of(record, at)
    local time, used = forget(state, window, key)
    local full_at = 0
    if amount == 0 then -- Nothing is charged, so nothing is stored: a clock may be set back.
      record.unsaved = record.unsaved or {}
      for place = at, at + KEPT_UNTIL - 1 do record.unsaved[place] = record[place] end
    elseif used + amount <= capacity then
      full_at = charge(state, time, amount, window, step, key)
    end
    put(record, at, state)
    return used + amount <= capacity and full_at or nil
  end,
  settle = function(record, at, change, _, window, step, key)
    if change <= 0 then return 0 end
    local state = state_of(record, at)
    local time, used = forget(state, window, key)
    local full_at = charge(state, time, math.min(change, MOST_DEBT - used), window, step, key)
    put(record, at, state)
    return full_at
  end,
  -- The oldest amounts are credited, which would have expired first.
  credit = function(record, at, change, _, window, _, key)
    local state = state_of(record, at)
    local _, used = forget(state, window, key)
    state[FORGOTTEN] = math.min(state[TOTAL] - used - change, state[TOTAL])
    local log = state[ENTRIES] > 0 and log_entries(state, key, state[HEAD], state[ENTRIES])
    if log then drop_entries(state, log, first_entry(log, state[ENTRIES], 8, state[FORGOTTEN] + 1)) end
    put(record, at, state)
    return state[LAST] + window
  end,
  -- Entries that were closed in the meantime stay spent.
  undo = function(record, at, change, _, window, _, key)
    local state = state_of(record, at)
    local time, used = forget(state, window, key)
    if used > 0 then
      local closed = state[FORGOTTEN]
      if state[ENTRIES] > 0 then
        local log = log_entries(state, key, state[HEAD] + state[ENTRIES] - 1, 1)
        closed = log and unpack_from('<d', log, 9) or state[TOTAL]
      end
      state[TOTAL] = math.max(state[TOTAL] + change, closed)
    end
    put(record, at, state)
    return time + window
  end,
  share = function(record, at, capacity, window, _, key)
    local _, used = forget(state_of(record, at), window, key)
    return used / capacity
  end,
  rejected = function(record, at, amount, capacity, window, _, key)
    local state = state_of(record, at)
    local _, used = forget(state, window, key)
    local excess, entries = used + amount - capacity, state[ENTRIES]
    local log = excess > 0 and entries > 0 and log_entries(state, key, state[HEAD], entries)
    local index = log and first_entry(log, entries, 8, state[FORGOTTEN] + excess) or entries
    put(record, at, state)
    if index < entries then return unpack_from('<dd', log, index * 16 + 1) end
    return 0, 0
  end,
}
