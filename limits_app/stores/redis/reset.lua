-- Forget the use of limits of a scope; permits stay with their holders, counted usage stays. See reset() of engine.py.
--
-- The plan: how many limits, and their fields. KEYS: the scope, and of each limit its log, and the leases of what
-- processes hold of it in slices.
local scope, count, is_forgotten = KEYS[1], nil, false
count, plan_at = unpack_from('<d', plan, plan_at)
for index = 1, count do
  local field, log, leases = nil, KEYS[index * 2], KEYS[index * 2 + 1]
  field, plan_at = unpack_from('s', plan, plan_at)
  local value = call('HGET', scope, field)
  local rule, state = nil, nil
  if value then rule, state = rule_of(log, value) end
  if value and not (rule and rule[LETTER] == 'p') then
    if not is_forgotten then
      write_to_known(scope)
      call('HSET', scope, '@', pack('<I4d', math.floor((now + RESET_KEPT_US) / 1000000), now + 1))
      is_forgotten = true
    end
    local left = 0
    for _, lease in ipairs(call('ZRANGEBYSCORE', leases, '(' .. whole(now), '+inf')) do
      left = left + unpack_from('<d', lease, 17)
    end
    if rule and left > 0 then
      local used = algorithms[rule[LETTER]]('used', state, 0, rule)
      algorithms[rule[LETTER]]('credit', state, -math.max(used - left * rule[PARTS], 0), rule)
      call('HSET', scope, field, value_of(rule, state, state[1]))
    else
      call('HDEL', scope, field)
    end
  end
end
if is_forgotten then
  local left = call('PTTL', scope)
  if left < 0 and kept_for_others(scope, {}) < ALWAYS or left >= 0 and left < milliseconds(RESET_KEPT_US) then
    call('PEXPIRE', scope, milliseconds(RESET_KEPT_US))
  end
end
return 'A'
