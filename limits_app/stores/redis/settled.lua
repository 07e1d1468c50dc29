-- Put what has changed, and tell those who wait for it.
for index = 1, count do
  if full_at[index] > 0 then
    keep(index)
    if watched[index] and tonumber(watched[index]) > now then
      call('PUBLISH', ARGV[#ARGV], KEYS[before + index])
    end
  end
end
for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
return recorded(lapsed and 'L' or newcomers and 'N' or 'A')
