-- Quota, as core/algorithms/quota.py. Parameters: capacity, length of a session (0: a calendar), place of the calendar.
-- Scripts have no calendar. The numbers of a call have four boundaries of each calendar after the amounts, and end with
-- the time in which these boundaries are right: outside of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', ARGV[2], #ARGV[2] - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

local function period_now(limit)
  local session_us = limit.b
  if session_us > 0 then return now, now + session_us end
  local first, second, third, fourth = unpack_from('<dddd', ARGV[2], limit.request.calendars_at + limit.c)
  if now < second then return first, second end
  if now < third then return second, third end
  return third, fourth
end

-- Add to the count of the current period. While the clock is set back the period continues.
local function add_to_period(limit, amount)
  local state = limit.state
  if now >= state.ends or state.count == 0 then
    state.start, state.ends = period_now(limit)
    state.count = 0
  end
  state.start, state.count = min(state.start, now), min(state.count + amount, MOST_DEBT)
  return state.count > 0 and state.ends or 0
end

local function credit_period(limit, change)
  limit.state.count = max(limit.state.count + change, 0)
  return limit.state.ends
end

algorithms.quota = {
  read = function(record, place)
    local start, ends, count = unpack_from('<I8I8I8', record, place)
    return {start = start, ends = ends, count = count}
  end,
  write = function(state)
    return pack('<I8I8I8', state.start, state.ends, state.count)
  end,
  take = function(limit, amount)
    local count = now < limit.state.ends and limit.state.count or 0
    if count + amount > limit.a then return nil end
    return add_to_period(limit, amount)
  end,
  settle = function(limit, change)
    if change > 0 then return add_to_period(limit, change) end
    -- What was charged in an earlier period is not refunded.
    if charged_at < limit.state.start then return 0 end
    return credit_period(limit, change)
  end,
  credit = credit_period,
  share = function(limit)
    return now < limit.state.ends and limit.state.count / limit.a or 0
  end,
}
-- What was charged a moment ago is refunded as any other amount.
algorithms.quota.undo = algorithms.quota.settle
