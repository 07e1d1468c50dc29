-- Permits, as engine/algorithms/permits.py. Numbers: permits held, holders, fence, time at which the first lease expires.
-- Parameters: length of a lease, longest hold (0: any).
-- The leases are in a sorted set by the time at which they expire; a member is holder, amount, and latest end. After the
-- clock was set back, the end may be another, which the holder knows; see renew.lua.
local NEVER = 9007199254740992 -- as NEVER_US in engine/algorithms/rule.py

local function lease_of(amount, since, hold_us)
  local holder = string.sub(numbers, after_amounts, after_amounts + 15)
  return holder .. pack('<dd', amount, hold_us > 0 and since + hold_us or NEVER)
end

-- Count the leases again where one may have expired, or where the record was evicted and its leases were not.
rejected = rejected or {}
function rejected.p(state, _, rule)
  if state[5] > 0 and (state[3] == 0 or state[6] > now) then return end
  local leases = call('ZRANGEBYSCORE', rule.key, '(' .. whole(now), '+inf', 'WITHSCORES')
  local held = 0
  for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
  state[3], state[4], state[6] = held, #leases / 2, tonumber(leases[2] or 0)
  write_later('ZREMRANGEBYSCORE', rule.key, '-inf', whole(now))
end

-- Leases that end so late that they were written later than now plus a lease end after a lease. Those that were renewed
-- since end by the new clock.
local function set_back(state, rule)
  local ends = now + rule.a
  local latest = ends + rule.a
  if state[3] == 0 or state[6] <= latest then return false end
  for _, lease in ipairs(call('ZRANGEBYSCORE', rule.key, '(' .. whole(latest), '+inf')) do
    write_later('ZADD', rule.key, whole(ends), lease)
  end
  state[6] = math.min(tonumber(call('ZRANGE', rule.key, 0, 0, 'WITHSCORES')[2] or ends), ends)
  return true
end

-- Return the permits of a claim; returns whether its lease was still there.
local function return_lease(amount, limit)
  local is_held = call('ZREM', limit.key, lease_of(-amount, charged_at, limit.b)) > 0
  lease_was_lost = lease_was_lost or not is_held
  return is_held
end

function algorithms.p(verb, state, amount, rule)
  if verb == 'current' then return set_back(state, rule) end
  local ends = now + rule.a
  if verb ~= 'take' and verb ~= 'used' then
    if not return_lease(amount, rule) then return 0 end
    state[3], state[4] = math.max(state[3] + amount, 0), math.max(state[4] - 1, 0)
    return ends
  end
  rejected.p(state, amount, rule)
  if verb == 'used' then return state[3] end
  if state[3] + amount > rule.capacity then return nil end
  if state[3] == 0 or ends < state[6] then state[6] = ends end
  -- A fence is at least the clock, so that it still grows after idle state was removed.
  state[3], state[4], state[5] = state[3] + amount, state[4] + 1, math.max(now, state[5] + 1)
  write_later('ZADD', rule.key, whole(ends), lease_of(amount, now, rule.b))
  write_later('PEXPIRE', rule.key, milliseconds(idle_us(rule.a)))
  return ends
end
