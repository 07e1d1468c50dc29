-- Add rejections that a process has counted to those that wait to be collected with usage (see usage.lua).
--
-- KEYS: the finished usage, and its hours. ARGV from 3 on are three values for each limit and minute: the label, the hour
-- with the number of rejections and the times of the first and the last, and the ids of requests.
-- The plan: the length to which ids are cut.
local ids_length = unpack_from('<d', plan, plan_at)
for at = 3, #ARGV, 3 do
  local label, ids = ARGV[at], ARGV[at + 2]
  local hour, number, first, last = unpack_from('<dddd', ARGV[at + 1])
  local field = 'r' .. string.sub(ARGV[at + 1], 1, 8) .. redis.sha1hex(label)
  local stored = call('HGET', finished, field)
  if stored then
    local old_number, old_first, old_last = unpack_from('<ddd', stored, #label + 2)
    local old_ids = string.sub(stored, #label + 26)
    number, first, last = number + old_number, math.min(first, old_first), math.max(last, old_last)
    if string.match(old_ids, '^[^ ]*') == ids then
      ids = old_ids
    elseif ids == '' or old_ids == '' then
      ids = ids .. old_ids
    else
      ids = string.sub(ids .. ' ' .. old_ids, 1, ids_length)
    end
  end
  keep_usage(field, label .. '\0' .. pack('<ddd', number, first, last) .. ids, hour)
end
drop_old_usage()
return {}
