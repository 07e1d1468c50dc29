-- Forget the use of limits of a scope; permits stay with their holders, counted usage stays. See reset() of engine.py.
--
-- The plan: how many limits, and their fields. KEYS: the scope, and of each limit its log, and the leases of what
-- processes hold of it in slices.
local RESET_KEPT_US = 86400000000 -- as in engine/engine.py
local scope, count, is_forgotten = KEYS[1], nil, false
count, plan_at = unpack_from('<d', plan, plan_at)
for index = 1, count do
  local field, log, leases = nil, KEYS[index * 2], KEYS[index * 2 + 1]
  field, plan_at = unpack_from('s', plan, plan_at)
  local value = call('HGET', scope, field)
  local rule, state = nil, nil
  if value then rule, state = rule_of(log, value) end
  if value and not (rule and rule.letter == 'p') then
    if not is_forgotten then
      call('HDEL', scope, '') -- without effect, see save()
      call('HSET', scope, '@', pack('<I4d', math.floor((now + RESET_KEPT_US) / 1000000), now + 1))
      is_forgotten = true
    end
    local left = 0
    for _, lease in ipairs(call('ZRANGEBYSCORE', leases, '(' .. whole(now), '+inf')) do
      left = left + unpack_from('<d', lease, 17)
    end
    if rule and left > 0 then
      local used = algorithms[rule.letter]('used', state, 0, rule)
      algorithms[rule.letter]('credit', state, -math.max(used - left * rule.parts, 0), rule)
      call('HSET', scope, field, pack(rule.format, unpack(state)))
    else
      call('HDEL', scope, field)
    end
  end
end
if is_forgotten then
  local left = call('PTTL', scope)
  if left < 0 and kept_for_others(scope, {}) < ALWAYS or left >= 0 and left * 1000 <= RESET_KEPT_US then
    call('PEXPIRE', scope, milliseconds(RESET_KEPT_US))
  end
end
return 'A'
