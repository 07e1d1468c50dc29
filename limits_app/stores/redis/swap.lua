-- Replace records that are still what they were. The plan: how many, and in how many of their scopes something is counted;
-- then, from ARGV[3] on, for each record the old one, the new one, and how long it lives; then writes: a command, the number
-- of its key, and two arguments. What the old records have counted is closed.
-- Replies: A done, C something else has changed them.
local count, scopes, at = unpack_from('<dd', plan)
for index = 1, count do
  local raw = call('HGET', KEYS[1 + index], 's') or ''
  if raw ~= ARGV[index * 3] then return 'C' end
end
local first_wanted, moment, begins, counts, before = wanted, admitted_at, false, {}, 1
-- with: closing
-- with: count
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
