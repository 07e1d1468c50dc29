-- As core/algorithms/permits.py: (permits held, holders, fence, earliest moment at which a lease may run out).
-- The leases stand in a sorted set by the moment at which they run out; members are holder, amount, and last moment.
local function lease(amount, from, hold_us)
  return holder .. pack('<dd', amount, hold_us > 0 and from + hold_us or 9007199254740992)
end

-- @take
-- Take back what has run out, before anything is decided; says whether there was anything to look through.
function open.permits(s, o, now, key)
  -- The record may have been evicted, and its leases not.
  if s[2] > 0 and (s[o] == 0 or s[o + 3] > now) then return false end
  call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
  local leases = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  local held = 0
  for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
  s[o], s[o + 1], s[o + 3] = held, #leases / 2, tonumber(leases[2] or 0)
  return s[2] > 0 or held > 0
end

function take.permits(s, o, now, amount, capacity, lease_us, hold_us, key)
  local held, fence, ends = s[o], s[o + 2], now + lease_us
  if held + amount > capacity then return nil end
  if held == 0 or ends < s[o + 3] then s[o + 3] = ends end
  s[o], s[o + 1], s[o + 2] = held + amount, s[o + 1] + 1, max(now, fence + 1)
  write('ZADD', key, whole(ends), lease(amount, now, hold_us))
  write('PEXPIRE', key, milliseconds(idle(lease_us)))
  return ends
end

-- @settle undo
function settle.permits(s, o, now, change, capacity, lease_us, hold_us, key)
  if call('ZREM', key, lease(-change, admitted_at, hold_us)) == 0 then
    lapsed = true
    return 0
  end
  s[o], s[o + 1] = max(s[o] + change, 0), max(s[o + 1] - 1, 0)
  return now + lease_us
end

-- @share
function share.permits(s, o, now, capacity, lease_us, hold_us, key)
  local held = s[o]
  if held > 0 and s[o + 3] <= now then
    held = 0
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. whole(now), '+inf')) do
      held = held + unpack_from('<d', member, 17)
    end
  end
  return held / capacity
end
