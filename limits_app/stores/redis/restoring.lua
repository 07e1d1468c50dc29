-- What is told is what counts now; what is kept is what was there.
told = restores and reply
for index = 1, count do
  if told then told = told .. pack(formats[index], unpack(states[index])) end
end
for place = 1, restores and #restores or 0 do
  local s, o, kept = unpack(restores[place])
  for offset = 1, #kept do s[o + offset - 1] = kept[offset] end
end
