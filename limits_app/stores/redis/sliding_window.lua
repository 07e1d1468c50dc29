-- Sliding window, as core/algorithms/sliding_window.py. The log is a string of pairs of time and running total.
-- The fields of a state: ENTRIES of the log count, from HEAD on; it is kept until the second KEPT_UNTIL.
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
    local middle = floor((low + high) / 2)
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
  local time = max(now, state[LAST])
  local oldest = time - window + 1
  if state[LAST] < oldest then
    state[FORGOTTEN], state[HEAD], state[ENTRIES] = state[TOTAL], 0, 0
  elseif state[OLDEST] < oldest then
    local read = min(state[ENTRIES], 4) -- mostly only the first ones have expired
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
  state[ENTRIES], log_was_written = entries + 1, true
  if state[KEPT_UNTIL] * 1000000 < time + 2 * window then
    state[KEPT_UNTIL] = floor((time + idle_us(window)) / 1000000)
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

algorithms.sliding_window = {
  format = '<I8I8I8I8I8I2I2I4',
  take = function(state, amount, capacity, window, step, key)
    if amount > 0 then
      local time, used = forget(state, window, key)
      if used + amount > capacity then return nil end
      return charge(state, time, amount, window, step, key)
    end
    -- Nothing is charged, so nothing is stored: a clock may be set back.
    local told = {unpack(state, 1, KEPT_UNTIL)}
    local _, used = forget(told, window, key)
    return used <= capacity and 0 or nil, told
  end,
  settle = function(state, change, _, window, step, key)
    if change <= 0 then return 0 end
    local time, used = forget(state, window, key)
    return charge(state, time, min(change, MOST_DEBT - used), window, step, key)
  end,
  -- The oldest amounts are credited, which would have expired first.
  credit = function(state, change, _, window, _, key)
    local _, used = forget(state, window, key)
    state[FORGOTTEN] = min(state[TOTAL] - used - change, state[TOTAL])
    local log = state[ENTRIES] > 0 and log_entries(state, key, state[HEAD], state[ENTRIES])
    if log then drop_entries(state, log, first_entry(log, state[ENTRIES], 8, state[FORGOTTEN] + 1)) end
    return state[LAST] + window
  end,
  -- Entries that were closed in the meantime stay spent.
  undo = function(state, change, _, window, _, key)
    local time, used = forget(state, window, key)
    if used == 0 then return 0 end
    local closed = state[FORGOTTEN]
    if state[ENTRIES] > 0 then
      local log = log_entries(state, key, state[HEAD] + state[ENTRIES] - 1, 1)
      closed = log and unpack_from('<d', log, 9) or state[TOTAL]
    end
    state[TOTAL] = max(state[TOTAL] + change, closed)
    return time + window
  end,
  share = function(state, capacity, window, _, key)
    local _, used = forget(state, window, key)
    return used / capacity
  end,
  rejected = function(state, amount, capacity, window, _, key)
    local _, used = forget(state, window, key)
    local excess, entries = used + amount - capacity, state[ENTRIES]
    local log = excess > 0 and entries > 0 and log_entries(state, key, state[HEAD], entries)
    local index = log and first_entry(log, entries, 8, state[FORGOTTEN] + excess) or entries
    if index < entries then return unpack_from('<dd', log, index * 16 + 1) end
    return 0, 0
  end,
}
