-- Records for the engine. Without further arguments, read everything that is stored for scopes, at one time.
--
-- The plan: the version of the configuration (-1: any), how many scopes there are, and of each how many logs and leases
-- it has. KEYS[1] is the version; then of each scope the record, the logs, and the leases.
-- The reply: S stale configuration, or the time, and for each key what it holds.
if #ARGV == 2 then
  local version, scopes, at = unpack_from('<dd', plan, plan_at)
  if version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= version then return 'S' end
  local reply, key = {pack('<d', now)}, 1
  for _ = 1, scopes do
    local logs, leases
    logs, leases, at = unpack_from('<dd', plan, at)
    key = key + 1
    reply[#reply + 1] = call('HGET', KEYS[key], 's')
    reply[#reply + 1] = call('HGET', KEYS[key], 'k')
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
end

-- With further arguments, replace records that are still what they were when they were loaded (compare and swap).
--
-- The plan: how many records, and how much finished usage. ARGV from 3 on: of each record the old one with its kept use,
-- the new one, its kept use, and for how many milliseconds they are kept (0: indefinitely); of each usage its label, and
-- hour and sums as in count_usage(); then writes: a command, the number of its key, and two arguments.
-- Replies: A done, C a record was changed by another caller.
local records, usages = unpack_from('<dd', plan, plan_at)
for index = 1, records do
  local stored = (call('HGET', KEYS[index], 's') or '') .. (call('HGET', KEYS[index], 'k') or '')
  if stored ~= ARGV[index * 4 - 1] then return 'C' end
end
if records > 0 and call('EXISTS', KEYS[1]) == 1 then write_to_known({key = KEYS[1]}) end
for index = 1, records do
  local key, record, kept, kept_ms = KEYS[index], ARGV[index * 4], ARGV[index * 4 + 1], ARGV[index * 4 + 2]
  -- The old record may have counted other limits.
  local usage = call('HGET', key, 'c')
  local label = usage and call('HGET', KEYS[#KEYS - 1], 'o' .. key)
  if label then add_finished_usage(label, usage) end
  if usage then call('HDEL', key, 'c') end
  call('HSET', key, 's', record)
  if kept == '' then call('HDEL', key, 'k') else call('HSET', key, 'k', kept) end
  if kept_ms == '0' then call('PERSIST', key) else call('PEXPIRE', key, kept_ms) end
end
local at = records * 4 + 3
for index = at, at + usages * 2 - 1, 2 do add_finished_usage(ARGV[index], ARGV[index + 1]) end
for index = at + usages * 2, #ARGV, 4 do
  local command, key, first, second = ARGV[index], KEYS[tonumber(ARGV[index + 1])], ARGV[index + 2], ARGV[index + 3]
  if command == 'SET' then call('SET', key, first, 'PX', second) else call(command, key, first) end
end
return 'A'
