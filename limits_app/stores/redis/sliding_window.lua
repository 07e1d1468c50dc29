-- As core/algorithms/sliding_window.py: (forgotten, total, opened, last, oldest, head, entries, second until which the log is kept).
-- The log stands in a string of its own: pairs of (time, running total), of which those from `head` on still count.

-- What is rarely needed is made then: functions take a script as long as what it does with them.
local function rarely()
  -- A log that was evicted alone: what stood in it goes with the last of all that counts.
  local function lose_log(s, o)
    s[o + 4], s[o + 5], s[o + 6] = s[o + 3], 0, 0
  end

  -- Entries of the log; nil, and from now on none, where it was evicted.
  local function log_entries(s, o, key, head, entries)
    local log = call('GETRANGE', key, head * 16, (head + entries) * 16 - 1)
    if #log == entries * 16 then return log end
    lose_log(s, o)
  end

  -- The first of the entries whose time (field 0) or running total (field 8) is at least `least`.
  local function first_entry(log, entries, field, least)
    local low, high = 0, entries
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if unpack_from('<d', log, middle * 16 + field + 1) < least then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Forget what is as old as the window; gives the amount that is not.
  local function forget(s, o, now, window, key)
    local till = now - window
    if s[o + 3] <= till then
      s[o], s[o + 5], s[o + 6] = s[o + 1], 0, 0
    elseif s[o + 4] <= till then
      local head, entries = s[o + 5], s[o + 6]
      local count = min(entries, 4)
      while count > 0 do
        local log = log_entries(s, o, key, head, count)
        if not log then return s[o + 1] - s[o] end
        local gone = first_entry(log, count, 0, till + 1)
        if gone > 0 then s[o] = unpack_from('<d', log, gone * 16 - 7) end
        head, entries = head + gone, entries - gone
        if gone < count then
          s[o + 4] = unpack_from('<d', log, gone * 16 + 1)
          break
        end
        count = entries
      end
      if entries == 0 then head, s[o + 4] = 0, s[o + 3] end
      s[o + 5], s[o + 6] = head, entries
    end
    return s[o + 1] - s[o]
  end

  -- Running totals that start anew, before they are too large to be exact.
  local function rebase(s, o, key)
    local head, entries, forgotten = s[o + 5], s[o + 6], s[o]
    local log, fresh = log_entries(s, o, key, head, entries), {}
    for index = 1, entries do
      local time, total = unpack_from('<dd', log, index * 16 - 15)
      fresh[index] = pack('<dd', time, total - forgotten)
    end
    s[o], s[o + 1], s[o + 5] = 0, s[o + 1] - forgotten, 0
    return table.concat(fresh)
  end

  local function close_entry(s, o, now, window, key)
    if s[o + 6] > 0 and call('STRLEN', key) < (s[o + 5] + s[o + 6]) * 16 then lose_log(s, o) end
    if s[o + 6] == 0 then
      s[o], s[o + 1], s[o + 4], s[o + 5], s[o + 7] = 0, s[o + 1] - s[o], s[o + 3], 0, 0
      write('SET', key, pack('<dd', s[o + 3], s[o + 1]))
    elseif s[o + 5] >= 512 or s[o + 1] > 2251799813685248 then
      local log = rebase(s, o, key)
      write('SET', key, log .. pack('<dd', s[o + 3], s[o + 1]))
      s[o + 7] = 0
    else
      write('APPEND', key, pack('<dd', s[o + 3], s[o + 1]))
    end
    s[o + 6] = s[o + 6] + 1
    if s[o + 7] * 1000000 < now + 2 * window then
      s[o + 7] = floor((now + idle(window)) / 1000000)
      write('PEXPIRE', key, milliseconds(idle(window)))
    end
  end

  local function charge(s, o, now, amount, window, step, key)
    if s[o + 1] == s[o] then
      s[o], s[o + 1], s[o + 2], s[o + 3], s[o + 4], s[o + 5], s[o + 6] = 0, amount, now, now, now, 0, 0
      return now + window
    end
    if now - s[o + 2] > step then
      close_entry(s, o, now, window, key)
      s[o + 2] = now
    end
    s[o + 1], s[o + 3] = s[o + 1] + amount, now
    return now + window
  end

  return forget, charge, log_entries, first_entry
end

-- @usual
local forgotten, total, opened, last, oldest = unpack_from('<I7I7I7I7I7', raw, 11)
last = max(now, last)
if oldest > last - b and total > forgotten and last - opened <= c and total - forgotten + amount <= a then
  full = last + b
  after = pack('<c6I4I7I7I7I7I7c0', layout, lives_until, forgotten, total + amount, opened, last, oldest,
    string.sub(raw, 46))
end

-- @take
function take.sliding_window(s, o, now, amount, capacity, window, step, key)
  now = max(now, s[o + 3])
  -- Most of the time nothing expires, and the entry that is open stays so.
  if amount > 0 and s[o + 4] > now - window and s[o + 1] > s[o] and now - s[o + 2] <= step then
    if s[o + 1] - s[o] + amount > capacity then return nil end
    s[o + 1], s[o + 3] = s[o + 1] + amount, now
    return now + window
  end
  local forget, charge = rarely()
  -- When nothing is charged, what is forgotten is not kept: a clock may go back.
  if amount == 0 then
    restores = restores or {}
    restores[#restores + 1] = {s, o, {unpack(s, o, o + 6)}}
  end
  if forget(s, o, now, window, key) + amount > capacity then return nil end
  if amount == 0 then return 0 end
  return charge(s, o, now, amount, window, step, key)
end

-- @settle
function settle.sliding_window(s, o, now, change, capacity, window, step, key)
  if change <= 0 then return 0 end
  local forget, charge = rarely()
  now = max(now, s[o + 3])
  change = min(change, 4503599627370496 - forget(s, o, now, window, key))
  return charge(s, o, now, change, window, step, key)
end

-- @undo
-- What has been closed since stays spent.
function settle.sliding_window(s, o, now, change, capacity, window, step, key)
  local forget, _, log_entries = rarely()
  now = max(now, s[o + 3])
  if forget(s, o, now, window, key) == 0 then return 0 end
  local closed, entries = s[o], s[o + 6]
  if entries > 0 then
    local log = log_entries(s, o, key, s[o + 5] + entries - 1, 1)
    closed = log and unpack_from('<d', log, 9) or s[o + 1]
  end
  s[o + 1] = max(s[o + 1] + change, closed)
  return now + window
end

-- @credit
function settle.sliding_window(s, o, now, change, capacity, window, step, key)
  local forget, _, log_entries, first_entry = rarely()
  s[o] = min(s[o + 1] - forget(s, o, max(now, s[o + 3]), window, key) - change, s[o + 1])
  local head, entries = s[o + 5], s[o + 6]
  local log = entries > 0 and log_entries(s, o, key, head, entries)
  if log then
    local gone = first_entry(log, entries, 8, s[o] + 1)
    s[o + 5], s[o + 6] = head + gone, entries - gone
    if gone == entries then s[o + 4], s[o + 5] = s[o + 3], 0 else s[o + 4] = unpack_from('<d', log, gone * 16 + 1) end
  end
  return s[o + 3] + window
end

-- @share
function share.sliding_window(s, o, now, capacity, window, step, key)
  return (rarely())(s, o, max(now, s[o + 3]), window, key) / capacity
end

-- @view
-- What whoever was refused needs of the log: what is forgotten, and the entry with which enough comes back.
function view.sliding_window(s, o, now, amount, capacity, window, step, key)
  local forget, _, log_entries, first_entry = rarely()
  now = max(now, s[o + 3])
  local excess = forget(s, o, now, window, key) + amount - capacity
  local entries, time, total = s[o + 6], 0, 0
  local log = excess > 0 and entries > 0 and log_entries(s, o, key, s[o + 5], entries)
  if log then
    local index = first_entry(log, entries, 8, s[o] + excess)
    if index < entries then time, total = unpack_from('<dd', log, index * 16 + 1) end
  end
  return pack('<ddd', s[o], time, total)
end
