-- Quota, as engine/algorithms/quota.py. Numbers: start of counting, end of the period, amount in it. Parameters: length of a
-- session (0: a calendar), and place of the calendar, in a tag its name. Scripts have no calendar: the numbers of a request
-- have four boundaries of each from `after_amounts` on, and those of the call end with the time in which the period and the
-- next one are among these. Outside of it nothing is decided, and the caller sends others.
local known_from, known_until = unpack_from('<dd', numbers, #numbers - 15)
if now < known_from or now >= known_until then return 'T' .. pack('<d', now) end

-- The boundaries of a calendar. `bounds` are those of a rule that is not in the plan; see carry.lua.
function boundaries(rule)
  if rule.bounds then return unpack(rule.bounds) end
  return unpack_from('<dddd', numbers, after_amounts + rule.b)
end

-- Start and end of the present period, and the end of the next one.
function periods(rule)
  if rule.a > 0 then return now, now + rule.a, now + 2 * rule.a end
  local first, second, third, fourth = boundaries(rule)
  if now >= second then return second, third, fourth end
  return first, second, third
end

function algorithms.q(verb, state, amount, rule)
  local start, ends, count = state[3], state[4], state[5]
  if verb == 'current' then
    local present, present_ends, next_ends = periods(rule)
    if ends <= next_ends then return false end
    state[3], state[4] = present, present_ends
    return true
  end
  if verb == 'used' then return now < ends and count or 0 end
  if verb ~= 'take' and amount <= 0 then
    if verb ~= 'credit' and charged_at < start then return 0 end -- amounts of an earlier period are not refunded
    state[5] = math.max(count + amount, 0)
    return ends
  end
  if now < ends and count > 0 then
    start = math.min(start, now) -- while the clock is set back, the period continues
  else
    start, ends = periods(rule)
    count = 0
  end
  if verb == 'take' and count + amount > rule.capacity then return nil end
  count = math.min(count + amount, MOST_DEBT)
  state[3], state[4], state[5] = start, ends, count
  return count > 0 and ends or 0
end
