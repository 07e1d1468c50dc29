-- Check all, then charge all.
-- Replies: S stale, C another layout, T another time, R refused, A admitted, N admitted with newcomers.
-- with: scopes
local first_ask, first_wanted, scopes, moment, begins, fits = at, wanted, count, now, true, true
-- with: open
for ask = 1, asks do
  local name, scope, offset, a, b, c, key, soft, amount
  name, scope, offset, a, b, c, key, soft, at = unpack_from('<sddddddd', plan, at)
  if fits then
    amount, wanted = unpack_from('<d', ARGV[2], wanted)
    local full = take[name](states[scope], offset, now, amount, a, b, c, KEYS[key])
    -- As core/algorithms/soft.py: what does not fit is charged all the same.
    if not full and soft > 0 then full = settle[name](states[scope], offset, now, amount, a, b, c, KEYS[key]) end
    if not full then fits = false elseif full > full_at[scope] then full_at[scope] = full end
  end
end
-- All of this is only about who is refused; loops that are written out stand at the beginning of lines.
if not fits then
local reply = 'R' .. pack('<d', now)
for index = 1, count do
  reply = reply .. raws[index]
end
-- with: views
return reply
end -- if not fits
-- with: count
-- Put what has changed, and tell it.
local reply, told = (newcomers and 'N' or 'A') .. pack('<d', now), nil
-- with: restoring
for index = 1, count do
  -- with: keeping
  reply = reply .. raw
end
reply = told or reply
for place = 1, writes and #writes or 0 do call(unpack(writes[place])) end
-- with: telling
-- with: recording
return reply
