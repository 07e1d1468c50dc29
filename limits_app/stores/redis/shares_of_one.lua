-- As shares.lua where each request has one limit, as most have: what a plan says is read at once, and once for those who
-- have the same.
local known, before, layout, format, name, offset, a, b, c, key, _
for turn = 1, many do
  places[turn], wants[turn] = unpack_from('<d', ARGV[2], order + turn * 8 - 8), wanted
  local moved, _, size, at = unpack_from('<dddd', plan, places[turn])
  if at ~= known then
    known, _, before, _, _, layout, format, _, _, name, _, offset, a, b, c, key = at, unpack_from('<ddddc6sddsdddddd', plan, at)
  end
  local raw = call('HGET', KEYS[moved + before], 's')
  if raw and string.sub(raw, 1, 6) ~= layout then return 'C' end
  local used = raw and share[name]({unpack_from(format, raw)}, offset, now, a, b, c, KEYS[moved - 1 + key])
  shares[turn], wanted = max(used or 0, 0), wanted + size
end
