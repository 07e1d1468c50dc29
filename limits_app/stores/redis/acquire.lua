-- Check all, then charge all.
-- Replies: S stale, C another layout, T another time, R refused, A admitted, N admitted with newcomers.
local first_ask, first_wanted, scopes, moment, begins = at, wanted, count, now, true

if open then
  for _ = 1, asks do
    local name, scope, offset, _, key
    name, scope, offset, _, _, _, key, _, at = unpack_from('<sddddddd', plan, at)
    if open[name] and open[name](states[scope], offset, now, KEYS[key]) then
      raws[scope] = pack(formats[scope], unpack(states[scope]))
      call('HSET', KEYS[before + scope], 's', raws[scope])
      if states[scope][2] == 0 then call('PEXPIRE', KEYS[before + scope], milliseconds(least_idle)) end
    end
  end
  at = first_ask
end

for _ = 1, asks do
  local name, scope, offset, a, b, c, key, soft, amount
  name, scope, offset, a, b, c, key, soft, at = unpack_from('<sddddddd', plan, at)
  amount, wanted = unpack_from('<d', ARGV[2], wanted)
  local full = take[name](states[scope], offset, now, amount, a, b, c, KEYS[key])
  -- As core/algorithms/soft.py: what does not fit is charged all the same.
  if not full and soft > 0 then full = settle[name](states[scope], offset, now, amount, a, b, c, KEYS[key]) end
  if not full then
    local reply = {'R', pack('<d', now), unpack(raws)}
    at, wanted = first_ask, first_wanted
    for _ = 1, asks do
      name, scope, offset, a, b, c, key, soft, at = unpack_from('<sddddddd', plan, at)
      amount, wanted = unpack_from('<d', ARGV[2], wanted)
      if view and view[name] then
        local s = {unpack_from(formats[scope], raws[scope])}
        reply[#reply + 1] = view[name](s, offset, now, amount, a, b, c, KEYS[key])
      end
    end
    return table.concat(reply)
  end
  if full > full_at[scope] then full_at[scope] = full end
end
