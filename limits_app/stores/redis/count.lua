-- Count changes in the hour of a moment. The plan goes on, of each scope: how hour and sums are packed, or '' where nothing
-- is counted, and of each limit where its change stands, and how many parts a unit has, or 0 where it is not counted;
-- then the labels of all.
local hour, opens = floor(moment / 3600000000), false
local opening = {}
for index = 1, scopes do
  local format, place, parts
  format, place, parts, at = unpack_from('<sdd', plan, at)
  if format ~= '' then
    local counting, changed = counts[index], false
    local sums = counting and {unpack_from(format, counting)} or {}
    local goes_on = sums[1] == hour
    for limit = 2, #format - 1 do
      if limit > 2 then place, parts, at = unpack_from('<dd', plan, at) end
      local change = parts > 0 and unpack_from('<d', ARGV[2], first_wanted + place) or 0
      if change ~= 0 then change, changed = floor(change / parts * 1000 + 0.5), true end
      sums[limit] = goes_on and sums[limit] + change or change
    end
    if changed then
      sums[1] = hour
      sums = pack(format, unpack(sums, 1, #format - 1))
      if goes_on then
        counts[index] = sums
      else
        opens, opening[index] = true, sums
      end
    end
  end
end

if opens then
-- with: closing
-- with: hour
end -- if opens
