-- Change what was charged, and give permits back. Replies: C another layout, T another time, A done,
-- N done with newcomers, L done with permits that were not lent any more, and maybe newcomers.
local first_wanted, scopes, moment, begins = wanted, count, admitted_at, false
for _ = 1, asks do
  local name, scope, offset, a, b, c, key, _, change
  name, scope, offset, a, b, c, key, _, at = unpack_from('<sddddddd', plan, at)
  change, wanted = unpack_from('<d', ARGV[2], wanted)
  if change ~= 0 then
    full_at[scope] = max(full_at[scope], settle[name](states[scope], offset, now, change, a, b, c, KEYS[key]), 1)
  end
end
