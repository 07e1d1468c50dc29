-- Most requests of one limit find a record of their layout that lives on, an hour that is open, and room: this is all of
-- it, in three quarters of the time. Whoever finds anything else has changed nothing, and goes the long way with what
-- was read.
local version, before, _, _, layout, _, _, lasting, _, _, _, a, b, c, _, _, counted, _, parts =
  unpack_from('<ddddc6sddsdddddddsdd', plan)
-- Counts are packed so where a layout has one limit only.
if counted == '<dd' and lasting == 0 and (version < 0 or tonumber(call('GET', KEYS[2]) or 0) == version) then
  local key, amount, full, after = KEYS[before + 1], unpack_from('<d', ARGV[2], wanted), nil, nil
  seen = call('HMGET', key, 's', 'c')
  local raw, counts = seen[1], seen[2]
  local found_layout, lives_until
  if raw and counts then found_layout, lives_until = unpack_from('<c6I4', raw) end
  if found_layout == layout and amount > 0 then
-- with: room
    local hour, sum = unpack_from('<dd', counts)
    if full and hour == floor(now / 3600000000) and lives_until < 4294967295
      and lives_until * 1000000 >= now + max(full - now, max((full - now) * idle_factor, least_idle) / 2) then
      call('HSET', key, 's', after, 'c', pack('<dd', hour, sum + floor(amount / parts * 1000 + 0.5)))
      local reply = pack('<c1dc0', 'A', now, after)
-- with: recording
      return reply
    end
  end
end
