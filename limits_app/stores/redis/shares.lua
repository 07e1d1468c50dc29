-- Its keys stand further than its own plan says. The rest is as scopes.lua has it, which looks at the version when somebody
-- is asked.
for turn = 1, many do
  places[turn], wants[turn] = unpack_from('<d', ARGV[2], order + turn * 8 - 8), wanted
  local moved, _, size, at = unpack_from('<dddd', plan, places[turn])
  local _, before, count, asks, at = unpack_from('<dddd', plan, at)
  local states, largest = {}, 0
  for index = 1, count do
    local name, format, raw, _
    name, format, _, _, at = unpack_from('<c6sdd', plan, at)
    raw = call('HGET', KEYS[moved - 1 + before + index], 's')
    if raw and string.sub(raw, 1, 6) ~= name then return 'C' end
    states[index] = raw and {unpack_from(format, raw)}
  end
  for _ = 1, asks do
    local name, scope, offset, a, b, c, key, _, next_ask = unpack_from('<sddddddd', plan, at)
    -- Of a scope that nobody has used, nothing is in use.
    if states[scope] then
      largest = max(largest, share[name](states[scope], offset, now, a, b, c, KEYS[moved - 1 + key]))
    end
    at = next_ask
  end
  shares[turn], wanted = largest, wanted + size
end
