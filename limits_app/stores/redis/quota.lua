-- Quota, as engine/algorithms/quota.py. Numbers: start of counting, end of the period, amount in it. The parameters are
-- capacity, length of a session (0: a calendar), and place of the calendar. Scripts have no calendar: the numbers of a
-- request have four boundaries of each from `after_amounts` on, and those of the call end with the time in which the period
-- and the next one are among these. Outside of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', numbers, #numbers - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

-- Start and end of the present period, and the end of the next one.
local function periods(session_us, calendar)
  if session_us > 0 then return now, now + session_us, now + 2 * session_us end
  local first, second, third, fourth = unpack_from('<dddd', numbers, after_amounts + calendar)
  if now >= second then return second, third, fourth end
  return first, second, third
end

function current.quota(record, at, _, _, session_us, calendar)
  local start, ends, next_ends = periods(session_us, calendar)
  if record[at + 1] <= next_ends then return false end
  record[at], record[at + 1] = start, ends
  return true
end

function algorithms.quota(verb, record, at, amount, _, capacity, session_us, calendar)
  local start, ends, count = record[at], record[at + 1], record[at + 2]
  if verb == 'share' then return now < ends and count / capacity or 0 end
  if verb ~= 'take' and amount <= 0 then
    if verb ~= 'credit' and charged_at < start then return 0 end -- amounts of an earlier period are not refunded
    record[at + 2] = math.max(count + amount, 0)
    return ends
  end
  if now < ends and count > 0 then
    start = math.min(start, now) -- while the clock is set back, the period continues
  else
    start, ends = periods(session_us, calendar)
    count = 0
  end
  if verb == 'take' and count + amount > capacity then return nil end
  count = math.min(count + amount, MOST_DEBT)
  record[at], record[at + 1], record[at + 2] = start, ends, count
  return count > 0 and ends or 0
end
