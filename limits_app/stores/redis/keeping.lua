  -- Put the states of a scope, and see that it lives until they are full again; for ever, where it lasts.
  local s, key, full_in = states[index], KEYS[before + index], full_at[index] - now
  local lives = max(full_in * idle_factor, least_idle)
  local lasts, lasted = lasting[index] > 0, s[2] == last_second
  local extends = not lasts and (lasted or s[2] * 1000000 < now + max(full_in, lives / 2))
  if lasts then
    s[2] = last_second
  elseif extends then
    s[2] = min(floor((now + lives) / 1000000), last_second - 1)
  end
  local raw = pack(formats[index], unpack(s))
  if counts[index] then
    call('HSET', key, 's', raw, 'c', counts[index])
    -- What is counted has to be collected.
    lives = max(lives, kept_us)
  else
    call('HSET', key, 's', raw)
  end
  if extends then call('PEXPIRE', key, milliseconds(lives)) end
  if lasts and not lasted then call('PERSIST', key) end
