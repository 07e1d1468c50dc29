-- As core/algorithms/quota.py: (since when is counted, end of the period, amount in it).
-- Whoever asks knows the calendar. ARGV[2] ends with from when until when it has told of it, and before that stand, from
-- `calendars` + c on, four boundaries of each limit that has one.
local told_from, told_until = unpack_from('<dd', ARGV[2], #ARGV[2] - 15)
if now < told_from or now >= told_until then return 'T' .. pack('<d', now) end

local function period_at(now, session, c)
  if session > 0 then return now, now + session end
  local first, second, third, fourth = unpack_from('<dddd', ARGV[2], calendars + c)
  if now < second then return first, second end
  if now < third then return second, third end
  return third, fourth
end

-- @take
function take.quota(s, o, now, amount, capacity, session, c)
  local start, ends, count = s[o], s[o + 1], s[o + 2]
  if now >= ends or count == 0 then
    start, ends = period_at(now, session, c)
    count = 0
  end
  count = count + amount
  if count > capacity then return nil end
  s[o], s[o + 1], s[o + 2] = min(start, now), ends, count
  return count > 0 and ends or 0
end

-- @settle undo
function settle.quota(s, o, now, change, capacity, session, c)
  if change <= 0 then
    if admitted_at < s[o] then return 0 end
    s[o + 2] = max(s[o + 2] + change, 0)
    return s[o + 1]
  end
  if now >= s[o + 1] or s[o + 2] == 0 then
    s[o], s[o + 1] = period_at(now, session, c)
    s[o + 2] = 0
  end
  s[o] = min(s[o], now)
  s[o + 2] = min(s[o + 2] + change, 4503599627370496)
  return s[o + 1]
end

-- @credit
function settle.quota(s, o, now, change)
  s[o + 2] = max(s[o + 2] + change, 0)
  return s[o + 1]
end

-- @share
function share.quota(s, o, now, capacity)
  return now < s[o + 1] and s[o + 2] / capacity or 0
end
