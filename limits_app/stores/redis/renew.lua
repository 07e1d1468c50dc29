-- Lend permits again. The plan: for each lease how long, and until when at most; KEYS are pairs of leases and scope,
-- and from ARGV[3] on stand the members. The reply says of each lease whether it still runs.
local at, reply = 1, {}
for index = 1, #ARGV - 2 do
  local lease_us, ends
  lease_us, ends, at = unpack_from('<dd', plan, at)
  local leases, scope, member = KEYS[index * 2], KEYS[index * 2 + 1], ARGV[index + 2]
  local expires = tonumber(call('ZSCORE', leases, member) or 0)
  if expires > now then
    local lives = milliseconds(idle(lease_us))
    call('ZADD', leases, whole(min(now + lease_us, ends)), member)
    call('PEXPIRE', leases, lives)
    local left = call('PTTL', scope)
    if left >= 0 and left < lives then call('PEXPIRE', scope, lives) end
    reply[index] = '1'
  else
    reply[index] = '0'
  end
end
return table.concat(reply)
