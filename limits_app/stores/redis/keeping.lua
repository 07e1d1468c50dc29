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
