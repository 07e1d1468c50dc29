-- Put the new records, and close what the old ones have counted.
for index = 1, count do
  local key, raw = KEYS[1 + index], ARGV[index * 3 + 1]
  local sums = call('HGET', key, 'c')
  if sums then
    local label = call('HGET', KEYS[#KEYS - 1], 'o' .. key)
    if label then close(KEYS, sums, label) end
    call('HDEL', key, 'c')
  end
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
