-- The plan: the version that it was made for, how many keys stand before those of the scopes, how many scopes and
-- limits there are, and for each scope what names its layout, how its states are packed, and whether it lasts.
local version, before, count, asks, at = unpack_from('<dddd', plan, at)
calendars = wanted + asks * 8
if version >= 0 and tonumber(call('GET', KEYS[2]) or 0) ~= version then return 'S' end

local formats, raws, states, full_at, lasting, counts = {}, {}, {}, {}, {}, {}
local newcomers, changed = false, false
for index = 1, count do
  local name, format, size
  name, format, size, lasting[index], at = unpack_from('<c6sdd', plan, at)
  local key, raw = KEYS[before + index], nil
