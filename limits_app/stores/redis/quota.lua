-- Quota, as core/algorithms/quota.py. Numbers: start of counting, end of the period, amount in it. The parameters are
-- capacity, length of a session (0: a calendar), and place of the calendar. Scripts have no calendar: the numbers of a
-- request have four boundaries of each from `after_amounts` on, and those of the call end with the time in which these are
-- right. Outside of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', numbers, #numbers - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

-- The current period and the amount in it. While the clock is set back, the period continues.
local function current_period(record, at, session_us, calendar)
  local start, ends, count = record[at], record[at + 1], record[at + 2]
  if now < ends and count > 0 then return math.min(start, now), ends, count end
  if session_us > 0 then return now, now + session_us, 0 end
  local first, second, third, fourth = unpack_from('<dddd', numbers, after_amounts + calendar)
  if now < second then return first, second, 0 end
  if now < third then return second, third, 0 end
  return third, fourth, 0
end

local function credit_period(record, at, change)
  record[at + 2] = math.max(record[at + 2] + change, 0)
  return record[at + 1]
end

local function settle_period(record, at, change, _, session_us, calendar)
  -- Amounts of an earlier period are not refunded.
  if change <= 0 then return charged_at < record[at] and 0 or credit_period(record, at, change) end
  local start, ends, count = current_period(record, at, session_us, calendar)
  record[at], record[at + 1], record[at + 2] = math.min(start, now), ends, math.min(count + change, MOST_DEBT)
  return ends
end

algorithms.quota = {
  take = function(record, at, amount, capacity, session_us, calendar)
    local start, ends, count = current_period(record, at, session_us, calendar)
    if count + amount > capacity then return nil end
    record[at], record[at + 1], record[at + 2] = start, ends, count + amount
    return record[at + 2] > 0 and ends or 0
  end,
  settle = settle_period,
  undo = settle_period,
  credit = credit_period,
  share = function(record, at, capacity) return now < record[at + 1] and record[at + 2] / capacity or 0 end,
}
