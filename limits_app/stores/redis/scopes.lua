-- The plan: the version that it was made for, how many keys stand before those of the scopes, and for each
-- scope what names its layout, and how its states are packed.
local version, before, count, at = unpack_from('<ddd', plan)
if version >= 0 and tonumber(call('GET', KEYS[2]) or 0) ~= version then return 'S' end

local formats, raws, states, full_at, watched = {}, {}, {}, {}, {}
local newcomers, changed = false, false
for index = 1, count do
  local name, format, size
  name, format, size, at = unpack_from('<c6sd', plan, at)
  local raw = read(KEYS[before + index], watched, index)
  if not raw then
    newcomers, raw = true, name .. string.rep('\0', size - 6)
  elseif string.sub(raw, 1, 6) ~= name then
    changed = true
  end
  formats[index], raws[index], full_at[index] = format, raw, 0
end
if changed then return 'C' end
for index = 1, count do states[index] = {unpack_from(formats[index], raws[index])} end

local asks = (#ARGV[2] - wanted + 1) / 8

-- Put the states of a scope, and see that it lives until they are full again.
local function keep(index)
  local s, key, full_in = states[index], KEYS[before + index], full_at[index] - now
  local lives = idle(full_in)
  local extends = s[2] * 1000000 < now + max(full_in, lives / 2)
  if extends then s[2] = min(floor((now + lives) / 1000000), 4294967295) end
  local raw = pack(formats[index], unpack(s))
  call('HSET', key, 's', raw)
  if extends then call('PEXPIRE', key, milliseconds(lives)) end
  return raw
end
