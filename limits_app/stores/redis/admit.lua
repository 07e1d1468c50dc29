-- Put what has changed, and tell it.
local reply = (newcomers and 'N' or 'A') .. pack('<d', now)
if restores then
  -- What is told is what counts now; what is kept is what was there.
  for index = 1, count do reply = reply .. pack(formats[index], unpack(states[index])) end
  for index = 1, #restores do
    local s, o, kept = unpack(restores[index])
    for offset = 1, #kept do s[o + offset - 1] = kept[offset] end
  end
  for index = 1, count do keep(index) end
else
  for index = 1, count do reply = reply .. keep(index) end
end
for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
if tells_before then
  for index = 1, count do reply = reply .. raws[index] end
end
return recorded(reply)
