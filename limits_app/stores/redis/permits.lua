-- Permits, as engine/algorithms/permits.py. Numbers: permits held, holders, fence, time at which the first lease expires.
-- The leases are in a sorted set by the time at which they expire; a member is holder, amount, and latest end. After the
-- clock was set back, the end may be another, which the holder knows; see renew.lua.

local function lease_of(amount, since, hold_us)
  local holder = string.sub(numbers, after_amounts, after_amounts + 15)
  return holder .. pack('<dd', amount, hold_us > 0 and since + hold_us or NEVER)
end

-- Count the leases again where one may have expired, or where the record was evicted and its leases were not.
function rejected.permits(record, at, _, key)
  if record[at + 2] > 0 and (record[at] == 0 or record[at + 3] > now) then return end
  local leases = call('ZRANGEBYSCORE', key, '(' .. whole(now), '+inf', 'WITHSCORES')
  local held = 0
  for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
  record[at], record[at + 1], record[at + 3] = held, #leases / 2, tonumber(leases[2] or 0)
  write_later('ZREMRANGEBYSCORE', key, '-inf', whole(now))
end

-- Leases that end so late that they were written later than now plus a lease end after a lease.
function current.permits(record, at, key, _, lease_us)
  local latest = now + 2 * lease_us
  if record[at] == 0 or record[at + 3] <= latest then return false end
  call('ZREM', key, '') -- as write_to_known
  for _, lease in ipairs(call('ZRANGEBYSCORE', key, '(' .. whole(latest), '+inf')) do
    call('ZADD', key, whole(now + lease_us), lease)
  end
  -- Leases that were renewed since end by the new clock.
  record[at + 3] = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or now + lease_us)
  return true
end

function algorithms.permits(verb, record, at, amount, key, capacity, lease_us, hold_us)
  local ends = now + lease_us
  if verb ~= 'take' and verb ~= 'share' then -- they are returned
    if call('ZREM', key, lease_of(-amount, charged_at, hold_us)) == 0 then
      lease_was_lost = true
      return 0
    end
    record[at], record[at + 1] = math.max(record[at] + amount, 0), math.max(record[at + 1] - 1, 0)
    return ends
  end
  rejected.permits(record, at, amount, key)
  if verb == 'share' then return record[at] / capacity end
  if record[at] + amount > capacity then return nil end
  if record[at] == 0 or ends < record[at + 3] then record[at + 3] = ends end
  -- A fence is at least the clock, so that it still grows after idle state was removed.
  record[at], record[at + 1], record[at + 2] = record[at] + amount, record[at + 1] + 1, math.max(now, record[at + 2] + 1)
  write_later('ZADD', key, whole(ends), lease_of(amount, now, hold_us))
  write_later('PEXPIRE', key, milliseconds(idle_us(lease_us)))
  return ends
end
