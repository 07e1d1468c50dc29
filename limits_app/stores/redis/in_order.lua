-- with: choose
-- Ask one after the other.
for turn = 1, many do
  local before, count, size, at = unpack_from('<dddd', plan, (unpack_from('<d', ARGV[2], order + turn * 8 - 8)))
  local reply = ask(turn, at, before, count, wanted)
  if reply then return reply end
  wanted = wanted + size
end
return table.concat(told)
