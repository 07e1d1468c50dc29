-- Count changes in the hour of a moment. The plan goes on, of each scope: how hour and sums are packed, or '' where nothing
-- is counted, and of each limit where its change stands, and how many parts a unit has, or 0 where it is not counted;
-- then the labels of all.
local hour, opens = floor(moment / 3600000000), false
local opening = {}
for index = 1, scopes do
  local format, place, parts
  format, place, parts, at = unpack_from('<sdd', plan, at)
  local counting, began, sum = counts[index], nil, nil
  if counting then began, sum = unpack_from('<dd', counting) end
  if format == '<dd' and began == hour then -- one limit in an hour that is open, as most are
    local change = parts > 0 and unpack_from('<d', ARGV[2], first_wanted + place) or 0
    if change ~= 0 then counts[index] = pack('<dd', hour, sum + floor(change / parts * 1000 + 0.5)) end
  elseif format ~= '' then
    local changed, goes_on = false, began == hour
    local sums = goes_on and {unpack_from(format, counting)} or {hour}
    for limit = 2, #format - 1 do
      if limit > 2 then place, parts, at = unpack_from('<dd', plan, at) end
      local change = parts > 0 and unpack_from('<d', ARGV[2], first_wanted + place) or 0
      if change ~= 0 then change, changed = floor(change / parts * 1000 + 0.5), true end
      sums[limit] = goes_on and sums[limit] + change or change
    end
    if changed and goes_on then
      counts[index] = pack(format, unpack(sums, 1, #format - 1))
    elseif changed then
      opens, opening[index] = true, pack(format, unpack(sums, 1, #format - 1))
    end
  end
end

if opens then
-- with: closing
-- with: hour
end -- if opens
