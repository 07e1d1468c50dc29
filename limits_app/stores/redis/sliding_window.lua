-- Sliding window, as core/algorithms/sliding_window.py. Parameters: capacity, window, step.
-- The log is a string under `limit.key`: pairs of time and running total. `entries` of them count, from `head` on;
-- the log is kept until the second `kept_until`.

-- Entries of the log, packed; nil where it was evicted. Then all that it held counts until the last amount expires.
local function log_entries(limit, state, head, entries)
  local log = call('GETRANGE', limit.key, head * 16, (head + entries) * 16 - 1)
  if #log == entries * 16 then return log end
  state.oldest, state.head, state.entries = state.last, 0, 0
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

-- Forget what is as old as the window at `time`; returns the amount that is younger.
local function forget(limit, state, time)
  local oldest_kept = time - limit.b + 1
  if state.last < oldest_kept then
    state.forgotten, state.head, state.entries = state.total, 0, 0
  elseif state.oldest < oldest_kept then
    local read = min(state.entries, 4) -- mostly only the first ones have expired
    while state.entries > 0 do
      local log = log_entries(limit, state, state.head, read)
      if not log then break end
      local gone = first_entry(log, read, 0, oldest_kept)
      if gone > 0 then state.forgotten = unpack_from('<d', log, gone * 16 - 7) end
      state.head, state.entries = state.head + gone, state.entries - gone
      if gone < read then
        state.oldest = unpack_from('<d', log, gone * 16 + 1)
        break
      end
      read = state.entries
    end
    if state.entries == 0 then state.head, state.oldest = 0, state.last end
  end
  return state.total - state.forgotten
end

-- Write the entry that was open to the log, which starts again where it is empty or long or its totals are large.
local function close_entry(limit, state, time)
  local entry, window = pack('<dd', state.last, state.total), limit.b
  if state.entries > 0 and call('STRLEN', limit.key) < (state.head + state.entries) * 16 then
    state.oldest, state.head, state.entries = state.last, 0, 0 -- the log was evicted
  end
  if state.entries > 0 and state.head < 512 and state.total <= 2251799813685248 then
    write_later('APPEND', limit.key, entry)
  else
    local log, rebased = nil, {}
    if state.entries > 0 then log = log_entries(limit, state, state.head, state.entries) end
    for index = 1, state.entries do
      local at, total = unpack_from('<dd', log, index * 16 - 15)
      rebased[index] = pack('<dd', at, total - state.forgotten)
    end
    state.total, state.forgotten, state.head, state.kept_until = state.total - state.forgotten, 0, 0, 0
    if state.entries == 0 then state.oldest = state.last end
    write_later('SET', limit.key, table.concat(rebased) .. pack('<dd', state.last, state.total))
  end
  state.entries = state.entries + 1
  if state.kept_until * 1000000 < time + 2 * window then
    state.kept_until = floor((time + idle_us(window)) / 1000000)
    write_later('PEXPIRE', limit.key, milliseconds(idle_us(window)))
  end
end

-- Charge an amount to a state that has forgotten what is too old.
local function charge(limit, time, amount)
  local state = limit.state
  if state.total == state.forgotten then
    state.forgotten, state.total, state.head, state.entries = 0, 0, 0, 0
    state.opened, state.oldest = time, time
  elseif time - state.opened > limit.c then
    close_entry(limit, state, time)
    state.opened = time
  end
  state.total, state.last = state.total + amount, time
  return time + limit.b
end

local function copied(state)
  local copy = {}
  for name, value in pairs(state) do copy[name] = value end
  return copy
end

algorithms.sliding_window = {
  read = function(record, place)
    local forgotten, total, opened, last, oldest, head, entries, kept_until =
      unpack_from('<I8I8I8I8I8I2I2I4', record, place)
    return {forgotten = forgotten, total = total, opened = opened, last = last, oldest = oldest, head = head,
      entries = entries, kept_until = kept_until}
  end,
  write = function(state)
    return pack('<I8I8I8I8I8I2I2I4', state.forgotten, state.total, state.opened, state.last, state.oldest, state.head,
      state.entries, state.kept_until)
  end,
  take = function(limit, amount)
    local time = max(now, limit.state.last)
    if amount == 0 then
      -- Nothing is charged, so nothing is stored: a clock may be set back.
      limit.told = copied(limit.state)
      return forget(limit, limit.told, time) <= limit.a and 0 or nil
    end
    if forget(limit, limit.state, time) + amount > limit.a then return nil end
    return charge(limit, time, amount)
  end,
  settle = function(limit, change)
    if change <= 0 then return 0 end
    local time = max(now, limit.state.last)
    local used = forget(limit, limit.state, time)
    return charge(limit, time, min(change, MOST_DEBT - used))
  end,
  -- The oldest amounts are credited, which would have expired first.
  credit = function(limit, change)
    local state = limit.state
    local used = forget(limit, state, max(now, state.last))
    state.forgotten = min(state.total - used - change, state.total)
    local log = state.entries > 0 and log_entries(limit, state, state.head, state.entries)
    if log then
      local gone = first_entry(log, state.entries, 8, state.forgotten + 1)
      state.head, state.entries = state.head + gone, state.entries - gone
      if state.entries == 0 then state.head, state.oldest = 0, state.last
      else state.oldest = unpack_from('<d', log, gone * 16 + 1) end
    end
    return state.last + limit.b
  end,
  -- What was closed in the meantime stays spent.
  undo = function(limit, change)
    local state = limit.state
    local time = max(now, state.last)
    if forget(limit, state, time) == 0 then return 0 end
    local closed = state.forgotten
    if state.entries > 0 then
      local log = log_entries(limit, state, state.head + state.entries - 1, 1)
      closed = log and unpack_from('<d', log, 9) or state.total
    end
    state.total = max(state.total + change, closed)
    return time + limit.b
  end,
  share = function(limit)
    return forget(limit, limit.state, max(now, limit.state.last)) / limit.a
  end,
  -- The state with what is forgotten, and the entry of the log with which the amount fits again, where it does not fit.
  tell = function(limit)
    local state = limit.told or limit.state
    local used = forget(limit, state, max(now, state.last))
    local excess, time, total = used + limit.amount - limit.a, 0, 0
    if limit.was_rejected and excess > 0 and state.entries > 0 then
      local log = log_entries(limit, state, state.head, state.entries)
      local index = log and first_entry(log, state.entries, 8, state.forgotten + excess)
      if index and index < state.entries then time, total = unpack_from('<dd', log, index * 16 + 1) end
    end
    return limit.algorithm.write(state) .. pack('<dd', time, total)
  end,
}
