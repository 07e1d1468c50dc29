-- On one server of several: what was there before, which another one may refuse.
for index = 1, count do
  reply = reply .. raws[index]
end
