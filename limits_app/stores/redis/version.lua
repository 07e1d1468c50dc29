-- Raise the version of the configuration by `step`, and at least to `least`; returns it.
-- KEYS[2], where it is given, is the log, and ARGV[3] has the changes for it, of 8 bytes each: see engine/change_log.py.
local step, least = unpack_from('<dd', plan, plan_at)
local version = tonumber(call('GET', KEYS[1]) or 0)
local raised = math.max(version + step, least)
if raised > version then
  call('PERSIST', KEYS[1]) -- without effect, as save() does, also for a new key, so that a change of limits always applies
  call('SET', KEYS[1], string.format('%.0f', raised))
end
if KEYS[2] then
  local log, changes, entries = KEYS[2], ARGV[3], ''
  for at = 1, #changes, 8 do entries = entries .. pack('<dc8', raised, string.sub(changes, at, at + 7)) end
  if call('GETRANGE', log, -16, -9) ~= pack('<d', version) then
    call('SET', log, version > 0 and pack('<dc8', version, string.rep('\0', 8)) or '')
  end
  -- 1,000 changes are read; a few more are kept, so that the log is rarely written as a whole.
  if call('APPEND', log, entries) > 1250 * 16 then call('SET', log, call('GETRANGE', log, -1001 * 16, -1)) end
end
return string.format('%.0f', raised)
