-- Replace records that are still what they were. The plan: how many; then, from ARGV[3] on, for each the old record,
-- the new one, and how long it lives; then writes: a command, the number of its key, and two arguments.
-- Replies: A done, C something else has changed them.
local count = unpack_from('<d', plan)
for index = 1, count do
  local raw = call('HGET', KEYS[1 + index], 's') or ''
  if raw ~= ARGV[index * 3] then return 'C' end
end
for index = 1, count do
  local key, raw = KEYS[1 + index], ARGV[index * 3 + 1]
  if raw == '' then
    call('DEL', key)
  else
    call('HSET', key, 's', raw)
    call('PEXPIRE', key, ARGV[index * 3 + 2])
  end
end
for index = count * 3 + 3, #ARGV, 4 do
  local command, key, first, second = ARGV[index], KEYS[tonumber(ARGV[index + 1])], ARGV[index + 2], ARGV[index + 3]
  if command == 'SET' then call('SET', key, first, 'PX', second) else call(command, key, first) end
end
return recorded('A')
