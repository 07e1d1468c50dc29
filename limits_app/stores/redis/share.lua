-- The largest share in use of any limit that is asked for, as core/claim.py has it; a reply when that cannot be said.
-- `moved` is how much further the keys stand than its plan says. The rest is as scopes.lua has it, which looks at the
-- version when somebody is asked.
local _, before, count, asks, at = unpack_from('<dddd', plan, at)
before = before + moved

if count == 1 and asks == 1 then -- as most are, and read at once
  local layout, format, _, _, name, _, offset, a, b, c, key = unpack_from('<c6sddsdddddd', plan, at)
  local raw = call('HGET', KEYS[before + 1], 's')
  if not raw then return 0 end
  if string.sub(raw, 1, 6) ~= layout then return 'C' end
  return max(0, share[name]({unpack_from(format, raw)}, offset, now, a, b, c, KEYS[key + moved]))
end

local states, largest = {}, 0
for index = 1, count do
  local name, format, raw, _
  name, format, _, _, at = unpack_from('<c6sdd', plan, at)
  raw = call('HGET', KEYS[before + index], 's')
  if raw and string.sub(raw, 1, 6) ~= name then return 'C' end
  states[index] = raw and {unpack_from(format, raw)}
end
for _ = 1, asks do
  local name, scope, offset, a, b, c, key, _, next_ask = unpack_from('<sddddddd', plan, at)
  -- Of a scope that nobody has used, nothing is in use.
  if states[scope] then
    largest = max(largest, share[name](states[scope], offset, now, a, b, c, KEYS[key + moved]))
  end
  at = next_ask
end
return largest
