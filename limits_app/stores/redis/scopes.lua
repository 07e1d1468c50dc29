-- The plan: the version that it was made for, how many keys stand before those of the scopes, how many scopes and
-- limits there are, and for each scope what names its layout, how its states are packed, and whether it lasts.
local version, before, count, asks, at = unpack_from('<dddd', plan, at)
calendars = wanted + asks * 8
if version >= 0 and not seen and tonumber(call('GET', KEYS[2]) or 0) ~= version then return 'S' end

local newcomers, changed, last_second = false, false, 4294967295
local formats, raws, states, full_at, lasting, counts = {}, {}, {}, {}, {}, {}
for index = 1, count do
  local name, format, size
  name, format, size, lasting[index], at = unpack_from('<c6sdd', plan, at)
  local key, raw = KEYS[before + index], nil
-- with: reading
  -- What was read may have been written under another layout, or by nobody yet.
  if not raw then
    newcomers, raw = true, name .. string.rep('\0', size - 6)
  elseif string.sub(raw, 1, 6) ~= name then
    changed = true
  end
  formats[index], raws[index], full_at[index] = format, raw, 0
end
if changed then return 'C' end
for index = 1, count do
  states[index] = {unpack_from(formats[index], raws[index])}
end
