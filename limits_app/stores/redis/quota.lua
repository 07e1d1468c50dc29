-- Quota, as core/algorithms/quota.py. State: start of counting, end of the period, amount in it. The parameters are
-- capacity, length of a session (0: a calendar), and place of the calendar. Scripts have no calendar: numbers have four
-- boundaries of each after the amounts, from `calendars_at` on, and end with the time in which these are right. Outside
-- of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', ARGV[2], #ARGV[2] - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

-- The current period and the amount in it. While the clock is set back, the period continues.
local function current_period(state, session_us, calendar)
  local start, ends, count = state[1], state[2], state[3]
  if now < ends and count > 0 then return min(start, now), ends, count end
  if session_us > 0 then return now, now + session_us, 0 end
  local first, second, third, fourth = unpack_from('<dddd', ARGV[2], calendars_at + calendar)
  if now < second then return first, second, 0 end
  if now < third then return second, third, 0 end
  return third, fourth, 0
end

local function credit_period(state, change)
  state[3] = max(state[3] + change, 0)
  return state[2]
end

local function settle_period(state, change, _, session_us, calendar)
  -- Amounts of an earlier period are not refunded.
  if change <= 0 then return charged_at < state[1] and 0 or credit_period(state, change) end
  local start, ends, count = current_period(state, session_us, calendar)
  state[1], state[2], state[3] = min(start, now), ends, min(count + change, MOST_DEBT)
  return ends
end

algorithms.quota = {
  format = '<I8I8I8',
  take = function(state, amount, capacity, session_us, calendar)
    local start, ends, count = current_period(state, session_us, calendar)
    if count + amount > capacity then return nil end
    state[1], state[2], state[3] = start, ends, count + amount
    return state[3] > 0 and ends or 0
  end,
  settle = settle_period,
  undo = settle_period,
  credit = credit_period,
  share = function(state, capacity) return now < state[2] and state[3] / capacity or 0 end,
}
