-- Read everything that is stored for scopes, at one time.
--
-- The plan: the version of the configuration (-1: any), how many scopes there are, and of each how many logs and leases
-- it has. KEYS[1] is the version; then of each scope the record, the logs, and the leases.
-- The reply: S stale configuration, or the time, and for each key what it holds.
local version, scopes, at = unpack_from('<dd', plan)
if version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= version then return 'S' end
local reply, key = {pack('<d', now)}, 1
for _ = 1, scopes do
  local logs, leases
  logs, leases, at = unpack_from('<dd', plan, at)
  key = key + 1
  reply[#reply + 1] = call('HGET', KEYS[key], 's')
  for _ = 1, logs do
    key = key + 1
    reply[#reply + 1] = call('GET', KEYS[key])
  end
  for _ = 1, leases do
    key = key + 1
    reply[#reply + 1] = call('ZRANGE', KEYS[key], 0, -1, 'WITHSCORES')
  end
end
return reply
