-- Permits, as engine/algorithms/permits.py. Numbers: permits held, holders, fence, time at which the first lease expires.
-- Parameters: length of a lease, longest hold (0: any), whether it is the lease of a token (0: no).
-- The leases are in a sorted set by the time at which they expire; a member is holder, amount, and latest end. After the
-- clock was set back, the end may be another, which the holder knows; see renew.lua.
local NEVER = 9007199254740992 -- as NEVER_US in engine/algorithms/rule.py

local function lease_of(amount, since, hold_us)
  local holder = string.sub(numbers, after_amounts, after_amounts + 15)
  return holder .. pack('<dd', amount, hold_us > 0 and since + hold_us or NEVER)
end

-- How long a lease of a holder lasts: that of a token has the length of its leases in it; see engine/holders.py.
local function leased_us(holder, rule)
  if string.byte(holder, 9) == 0 then return rule.a end
  local own = unpack_from('<I4', holder, 13) * 1000
  return rule.b > 0 and math.min(own, rule.b) or own
end

-- Whether the lease of a token is there for a holder.
local function has_token_lease(holder, limit)
  return tonumber(call('ZSCORE', limit.key, holder .. pack('<dd', 1, NEVER)) or 0) > now
end

-- Count the leases again where one may have expired, or where the record was evicted and its leases were not.
rejected = rejected or {}
function rejected.p(state, _, rule)
  if state[5] > 0 and (state[3] == 0 or state[6] > now) then return end
  local leases = call('ZRANGEBYSCORE', rule.key, '(' .. whole(now), '+inf', 'WITHSCORES')
  local held = 0
  for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
  local earliest = tonumber(leases[2] or 0)
  -- The leases of tokens may be longer than the one of the rule.
  if earliest - now > 2 * rule.a then earliest = now + rule.a end
  state[3], state[4], state[6] = held, #leases / 2, earliest
  write_later('ZREMRANGEBYSCORE', rule.key, '-inf', whole(now))
end

-- Leases that end so late that they were written later than now plus a lease end after a lease. Those that were renewed
-- since end by the new clock. Those of tokens may be longer.
local function set_back(state, rule)
  local ends = now + rule.a
  local latest = ends + rule.a
  if state[3] == 0 or state[6] <= latest then return false end
  local leases = call('ZRANGEBYSCORE', rule.key, '(' .. whole(latest), '+inf', 'WITHSCORES')
  for index = 1, #leases, 2 do
    local lease_us = leased_us(leases[index], rule)
    if tonumber(leases[index + 1]) > now + 2 * lease_us then
      write_later('ZADD', rule.key, whole(now + lease_us), leases[index])
    end
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
  if verb ~= 'take' and verb ~= 'used' then
    if not return_lease(amount, rule) then return 0 end
    state[3], state[4] = math.max(state[3] + amount, 0), math.max(state[4] - 1, 0)
    return rule.c > 0 and state[3] == 0 and now or now + rule.a
  end
  rejected.p(state, amount, rule)
  if verb == 'used' then return state[3] end
  if state[3] + amount > rule.capacity then return nil end
  local holder = string.sub(numbers, after_amounts, after_amounts + 15)
  if rule.c > 0 and string.byte(holder, 9) == 2 then -- an extension belongs to the first holder of the token
    token_has_ended = not has_token_lease(string.sub(holder, 1, 8) .. '\1\0\0\0' .. string.sub(holder, 13, 16), rule)
    if token_has_ended then return nil end
  end
  local lease_us = leased_us(holder, rule)
  local ends, looked_at = now + lease_us, now + math.min(lease_us, rule.a)
  if state[3] == 0 or looked_at < state[6] then state[6] = looked_at end
  -- A fence is at least the clock, so that it still grows after idle state was removed.
  state[3], state[4], state[5] = state[3] + amount, state[4] + 1, math.max(now, state[5] + 1)
  write_later('ZADD', rule.key, whole(ends), lease_of(amount, now, rule.b))
  local lives_us = idle_us(lease_us)
  if call('PTTL', rule.key) * 1000 <= lives_us then write_later('PEXPIRE', rule.key, milliseconds(lives_us)) end
  return ends
end
