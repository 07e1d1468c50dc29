-- Collect usage into a batch. A batch that was not forgotten is returned again, as it was.
--
-- KEYS: scopes that may count usage, the batch, the finished usage, and its hours (see usage.lua).
-- ARGV[3] is the step:
--   look    the plan: how many fit into a batch, and when collecting began: later usage does not make a batch full.
--           The reply: the batch, or '', whether more than one batch is left, and the fields to take; or nothing.
--   take    ARGV from 4 on: the name of the new batch, what follows it, and the fields, first those of scopes, whose
--           keys are in the same order. The reply: the batch, or nothing where there was no usage.
--   forget  ARGV[4] is the name of the batch.
local batch = KEYS[#KEYS - 2]
if ARGV[3] == 'forget' then
  if call('LINDEX', batch, 0) == ARGV[4] then call('DEL', batch) end
  return {}
end
local earlier = call('LRANGE', batch, 0, -1)
if #earlier > 0 then return earlier end
if ARGV[3] == 'look' then
  local most, began = unpack_from('<dd', plan, plan_at)
  local fields = call('ZRANGE', hours, 0, most - 1)
  if #fields == 0 then return {} end
  return {'', call('ZCOUNT', hours, '-inf', began / HOUR_US) > most and 'full' or '', unpack(fields)}
end

local collected, scopes = {ARGV[4], ARGV[5]}, #KEYS - 3
for index = 6, #ARGV do
  local field, key = ARGV[index], KEYS[index - 5]
  local found = call('HGET', finished, field)
  if found and index - 5 > scopes then
    collected[#collected + 1] = string.sub(field, 2, 9) .. found
  elseif found then
    local usage = call('HGET', key, '#')
    if usage and string.find(usage, '[^%z]', SUMS_AT) then
      collected[#collected + 1] = string.sub(usage, 1, 8) .. found .. '\0' .. string.sub(usage, SUMS_AT)
    end
    release_scope(key)
  end
  drop_usage(field)
end
if #collected == 2 then return {} end
call('RPUSH', batch, unpack(collected))
call('PEXPIRE', batch, milliseconds(USAGE_KEPT_US))
return collected
