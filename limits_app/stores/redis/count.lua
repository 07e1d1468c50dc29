-- Count changes in the hour of a moment. The plan goes on, of each scope: how hour and sums are packed, or '' where nothing
-- is counted, and of each limit where its change stands, and how many parts a unit has, or 0 where it is not counted;
-- then the labels of all.
local hour, opening = floor(moment / 3600000000), nil
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
        opening = opening or {}
        opening[index] = sums
      end
    end
  end
end

for index = 1, opening and scopes or 0 do
  local label
  label, at = unpack_from('s', plan, at)
  local sums, key, closed, hours = opening[index], KEYS[before + index], KEYS[#KEYS - 1], KEYS[#KEYS]
  if sums and not begins then
    close(KEYS, sums, label)
  elseif sums then
    if counts[index] then close(KEYS, counts[index], label) end
    -- How long the record lives is set anew, as if there had been none.
    counts[index], states[index][2] = sums, 0
    call('HSET', closed, 'o' .. key, label)
    -- Who has counted longest is collected first.
    call('ZADD', hours, now / 3600000000, 'o' .. key)
    call('PEXPIRE', closed, milliseconds(kept_us))
    call('PEXPIRE', hours, milliseconds(kept_us))
    -- What nobody has collected for too long is forgotten, faster than it comes.
    local old = call('ZRANGEBYSCORE', hours, '-inf', '(' .. floor((now - kept_us) / 3600000000), 'LIMIT', 0, 2)
    for place = 1, #old do
      call('HDEL', closed, old[place])
      call('ZREM', hours, old[place])
    end
  end
end
