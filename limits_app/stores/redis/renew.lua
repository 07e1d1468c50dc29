-- Renew leases of permits, and notes that a thread waits for a scope.
--
-- The plan: of each how long the lease lasts (0: it is a note), how long the permit may be held, and since when it is.
-- KEYS: of each the leases (for a note the scope again), and the scope. ARGV from 3 on: the members. The reply: of each
-- since when the permit is held, which is now where its hold starts again as in renew() of engine.py, or 0: it is lost.
local at, reply = plan_at, {}
local function keep_for(key, us)
  local left = call('PTTL', key)
  if left >= 0 and left * 1000 <= us then call('PEXPIRE', key, milliseconds(us)) end
end

for index = 1, #ARGV - 2 do
  local leases, scope, member = KEYS[index * 2 - 1], KEYS[index * 2], ARGV[index + 2]
  local lease_us, hold_us, since
  lease_us, hold_us, since, at = unpack_from('<ddd', plan, at)
  local expires = lease_us > 0 and tonumber(call('ZSCORE', leases, member) or 0)
  if not expires then
    local is_new = call('EXISTS', scope) == 0
    if not is_new then call('HDEL', scope, '') end -- without effect, see save()
    call('HSET', scope, '!', whole(now + 30000000))
    if is_new then call('PEXPIRE', scope, 60000) else keep_for(scope, 30000000) end
  elseif expires > now then
    if since - now > hold_us then since = now end
    call('ZREM', leases, '') -- without effect, see save()
    call('ZADD', leases, whole(math.min(now + lease_us, since + hold_us)), member)
    keep_for(leases, idle_us(lease_us))
    keep_for(scope, idle_us(lease_us))
  else
    since = 0
  end
  reply[index] = pack('<d', since)
end
return table.concat(reply)
