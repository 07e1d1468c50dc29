-- with: choose
-- Ask the emptiest first; among equals, whoever stands first. Of each request: where it stands in the plan, where in ARGV[2]
-- is what it wants, and the largest share in use of any limit that it asks for, as core/claim.py has it.
local places, wants, shares = {}, {}, {}
-- with: shares
for _ = 1, failover > 0 and many or 1 do
  local emptiest = 0
  for turn = 1, many do
    if shares[turn] and (emptiest == 0 or shares[turn] < shares[emptiest]) then emptiest = turn end
  end
  shares[emptiest] = false
  local before, count, _, at = unpack_from('<dddd', plan, places[emptiest])
  local reply = ask(emptiest, at, before, count, wants[emptiest])
  if reply then return reply end
end
return table.concat(told)
