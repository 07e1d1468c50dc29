-- Take back permits whose leases have run out, before anything is decided.
for ask = 1, asks do
  local name, scope, offset, _, key
  name, scope, offset, _, _, _, key, _, at = unpack_from('<sddddddd', plan, at)
  if open[name] and open[name](states[scope], offset, now, KEYS[key]) then
    raws[scope] = pack(formats[scope], unpack(states[scope]))
    call('HSET', KEYS[before + scope], 's', raws[scope])
    if states[scope][2] == 0 then call('PEXPIRE', KEYS[before + scope], milliseconds(least_idle)) end
  end
end
at = first_ask
