-- with: choose
-- Ask the emptiest first; among equals, whoever stands first.
local requests, shares = {}, {}
for turn = 1, many do
  local before, count, size, at = unpack_from('<dddd', plan, (unpack_from('<d', ARGV[2], order + turn * 8 - 8)))
  local share = share_of(at, before - 1)
  if type(share) == 'string' then return share end
  requests[turn], shares[turn] = {turn, at, before, count, wanted}, share
  wanted = wanted + size
end
for _ = 1, failover > 0 and many or 1 do
  local emptiest
  for turn = 1, many do
    if shares[turn] and (not emptiest or shares[turn] < shares[emptiest]) then emptiest = turn end
  end
  shares[emptiest] = false
  local reply = ask(unpack(requests[emptiest]))
  if reply then return reply end
end
return table.concat(told)
