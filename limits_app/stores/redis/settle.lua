-- Change what was charged, and give permits back. Replies: C another layout, T another time, A done,
-- N done with newcomers, L done with permits that were not lent any more, and maybe newcomers.
-- Until when somebody watches each scope.
local watched = {}
-- with: scopes
local first_wanted, scopes, moment, begins = wanted, count, admitted_at, false
for ask = 1, asks do
  local name, scope, offset, a, b, c, key, _, change
  name, scope, offset, a, b, c, key, _, at = unpack_from('<sddddddd', plan, at)
  change, wanted = unpack_from('<d', ARGV[2], wanted)
  if change ~= 0 then
    full_at[scope] = max(full_at[scope], settle[name](states[scope], offset, now, change, a, b, c, KEYS[key]), 1)
  end
end
-- with: count
-- Put what has changed, and tell those who wait for it.
for index = 1, count do
  if full_at[index] > 0 then
    -- with: keeping
    if watched[index] and tonumber(watched[index]) > now then call('PUBLISH', ARGV[#ARGV], key) end
  end
end
for place = 1, writes and #writes or 0 do call(unpack(writes[place])) end
return recorded(lapsed and 'L' or newcomers and 'N' or 'A')
