-- Everything about scopes, read only: the moment, and for each scope its record, its logs, and its leases.
-- The plan: the version that it was made for, and for each scope how many logs and leases it has.
local version, count, at = unpack_from('<dd', plan)
local key = 1
if version >= 0 then
  key = 2
  if tonumber(call('GET', KEYS[2]) or 0) ~= version then return 'S' end
end
local reply = {pack('<d', now)}
for _ = 1, count do
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
