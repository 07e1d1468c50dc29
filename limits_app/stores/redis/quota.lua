-- Quota, as core/algorithms/quota.py. Numbers: start of counting, end of the period, amount in it. The parameters are
-- capacity, length of a session (0: a calendar), and place of the calendar. Scripts have no calendar: the numbers of a
-- request have four boundaries of each from `after_amounts` on, and those of the call end with the time in which these are
-- right. Outside of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', numbers, #numbers - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

function algorithms.quota(verb, record, at, amount, capacity, session_us, calendar)
  local start, ends, count = record[at], record[at + 1], record[at + 2]
  if verb == 'share' then return now < ends and count / capacity or 0 end
  if verb ~= 'take' and amount <= 0 then
    if verb ~= 'credit' and charged_at < start then return 0 end -- amounts of an earlier period are not refunded
    record[at + 2] = math.max(count + amount, 0)
    return ends
  end
  if now < ends and count > 0 then
    start = math.min(start, now) -- while the clock is set back, the period continues
  elseif session_us > 0 then
    start, ends, count = now, now + session_us, 0
  else
    local first, second, third, fourth = unpack_from('<dddd', numbers, after_amounts + calendar)
    start, ends, count = first, second, 0
    if now >= second then start, ends = second, third end
    if now >= third then start, ends = third, fourth end
  end
  if verb == 'take' and count + amount > capacity then return nil end
  count = math.min(count + amount, MOST_DEBT)
  record[at], record[at + 1], record[at + 2] = start, ends, count
  return count > 0 and ends or 0
end
