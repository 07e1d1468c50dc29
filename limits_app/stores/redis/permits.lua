-- Permits, as core/algorithms/permits.py. State: permits held, holders, fence, time at which the first lease expires.
-- The leases are in a sorted set by the time at which they expire; a member is holder, amount, and latest end.

local function lease_of(amount, since, hold_us)
  return holder .. pack('<dd', amount, hold_us > 0 and since + hold_us or NEVER)
end

-- Count the leases again where one may have expired, or where the record was evicted and its leases were not.
local function count_leases(state, key)
  if state[3] > 0 and (state[1] == 0 or state[4] > now) then return end
  local leases = call('ZRANGEBYSCORE', key, '(' .. whole(now), '+inf', 'WITHSCORES')
  local held = 0
  for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
  state[1], state[2], state[4] = held, #leases / 2, tonumber(leases[2] or 0)
  write_later('ZREMRANGEBYSCORE', key, '-inf', whole(now))
end

algorithms.permits = {
  format = '<I8I4I8I8',
  take = function(state, amount, capacity, lease_us, hold_us, key)
    count_leases(state, key)
    local ends = now + lease_us
    if state[1] + amount > capacity then return nil end
    if state[1] == 0 or ends < state[4] then state[4] = ends end
    -- A fence is at least the clock, so that it still grows after idle state was removed.
    state[1], state[2], state[3] = state[1] + amount, state[2] + 1, max(now, state[3] + 1)
    write_later('ZADD', key, whole(ends), lease_of(amount, now, hold_us))
    write_later('PEXPIRE', key, milliseconds(idle_us(lease_us)))
    return ends
  end,
  settle = function(state, change, _, lease_us, hold_us, key)
    if call('ZREM', key, lease_of(-change, charged_at, hold_us)) == 0 then
      lease_was_lost = true
      return 0
    end
    state[1], state[2] = max(state[1] + change, 0), max(state[2] - 1, 0)
    return now + lease_us
  end,
  share = function(state, capacity, _, _, key)
    count_leases(state, key)
    return state[1] / capacity
  end,
  rejected = function(state, _, _, _, _, key) count_leases(state, key) end,
}
