-- What a scope has counted stands beside its record while the hour lasts: in 'c', the hour, and of each limit a sum in
-- thousandths of units. When the hour is over, or they have to make way, they are closed: added to those of the same hour and
-- label. The last of KEYS are a hash and, by hour, its fields: 'c' and a name for what is closed, and for a scope that is
-- counting 'o' and its key, with the label that its counts are reported under.
local function close(KEYS, sums, label)
  local closed, hours, hour = KEYS[#KEYS - 1], KEYS[#KEYS], string.sub(sums, 1, 8)
  local name, left = 'c' .. hour .. redis.sha1hex(label), false
  local stored, total = call('HGET', closed, name), label .. '\0'
  for at = 9, #sums, 8 do
    local sum = unpack_from('<d', sums, at)
    if stored then sum = sum + unpack_from('<d', stored, #label + at - 7) end
    left = left or sum ~= 0
    total = total .. pack('<d', sum)
  end
  if left then
    call('HSET', closed, name, total)
    call('ZADD', hours, unpack_from('<d', hour), name)
    call('PEXPIRE', closed, milliseconds(kept_us))
    call('PEXPIRE', hours, milliseconds(kept_us))
  else
    call('HDEL', closed, name)
    call('ZREM', hours, name)
  end
end
