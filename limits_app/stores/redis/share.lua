-- The largest share in use of any limit that is asked for, as core/claim.py has it.
local largest = 0
for _ = 1, asks do
  local name, scope, offset, a, b, c, key, _, next_ask = unpack_from('<sddddddd', plan, at)
  largest, at = max(largest, share[name](states[scope], offset, now, a, b, c, KEYS[key])), next_ask
end
return largest
