-- Collect usage into a batch. A batch that was not forgotten is returned again, as it was.
--
-- KEYS: scopes that may count usage, the batch, and what waits (see usage.lua).
-- ARGV[3] is the step:
--   look    the plan: how many fit into a batch, and when collecting began: later usage does not make a batch full.
--           The reply: the batch, or '', whether more than one batch is left, and the entries to take; or nothing.
--   take    ARGV from 4 on: the name of the new batch, what follows it, and the entries. Those that are not the first ones
--           any more were taken or dropped meanwhile. The reply: the batch, or nothing where there was no usage.
--   forget  ARGV[4] is the name of the batch.
local batch, waiting, list = KEYS[#KEYS - 1], KEYS[#KEYS], usage_list()
if ARGV[3] == 'forget' then
  if call('LINDEX', batch, 0) == ARGV[4] then call('DEL', batch) end
  return {}
end
local earlier = call('LRANGE', batch, 0, -1)
if #earlier > 0 then return earlier end
if ARGV[3] == 'look' then
  list.drop_old()
  local most, began = unpack_from('<dd', plan, plan_at)
  local entries, next_one = call('LRANGE', waiting, 0, most - 1), call('LINDEX', waiting, most)
  if #entries == 0 then return {} end
  local is_full = next_one and unpack_from('<d', next_one, 2) <= began / HOUR_US
  return {'', is_full and 'full' or '', unpack(entries)}
end

local collected = {ARGV[4], ARGV[5]}
for index = 6, #ARGV do
  local entry = ARGV[index]
  if call('LINDEX', waiting, 0) == entry then
    call('LPOP', waiting)
    if string.sub(entry, 1, 1) == 'o' then
      local field, key, label_at = list.scope_of(entry)
      local usage = call('HGET', key, field)
      if usage and string.find(usage, '[^%z]', 9) then
        collected[#collected + 1] = string.sub(entry, label_at) .. '\0' .. usage
      end
      if usage then list.release(key, field) end
    else
      collected[#collected + 1] = string.sub(entry, list.TEXT_AT)
    end
  end
end
if #collected == 2 then return {} end
call('RPUSH', batch, unpack(collected))
call('PEXPIRE', batch, milliseconds(USAGE_KEPT_US))
return collected
