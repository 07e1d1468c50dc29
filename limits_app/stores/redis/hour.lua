-- Open what begins to count in this hour, and close what it takes the place of; or close what was settled for another hour.
for index = 1, scopes do
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
