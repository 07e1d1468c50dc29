-- Change what a request has charged, and return its permits.
--
-- The plan: settle, again (the answer to the first settlement was lost: usage is not counted twice), credit or undo; for
-- how long slices are recorded (0: it is none), the channel on which returned amounts are announced, after its length,
-- and the request as in acquire.lua. The numbers: the changes, the holder, and the boundaries of calendars.
-- Replies: C and T as in acquire.lua, A done, L done, and a lease had run out.
local verb, recorded_us, channel
verb, recorded_us, channel, plan_at = unpack_from('<sddc0', plan, plan_at)
local scopes, limits = load_request(plan_at, 1, NUMBERS_AT, charged_at, true)
if not scopes then return 'C' .. pack('<d', now) .. limits end
local changes = amounts_of(NUMBERS_AT, limits)

for index, limit in ipairs(limits) do
  local change, scope, rule, full_at = changes[index], limit.scope, limit.rule, 0
  if change ~= 0 then
    if rule ~= limit and (rule.letter == 'p' or limit.letter == 'p') then
      -- The limit has become a resource limit, or ceased to be one.
      if limit.letter == 'p' then return_lease(change, limit) end
    -- What a reset has forgotten is not refunded.
    elseif change > 0 or verb == 'credit' or limit.letter == 'p' or charged_at + recorded_us >= scope.reset_at then
      local parts = rule == limit and change or scaled(change, rule.parts, limit.parts)
      full_at = algorithms[rule.letter](verb == 'again' and 'settle' or verb, limit.state, parts, rule)
    end
    scope.full_at, scope.is_changed = math.max(scope.full_at, full_at), true
    -- Permits that are returned were used; those of a request that was undone were not.
    if limit.usage > 0 and verb ~= 'again' and (limit.letter ~= 'p' or verb == 'undo') then
      count_usage(scope, limit, change)
    end
  end
end
for _, scope in ipairs(scopes) do
  if scope.is_changed then
    local is_late = scope.counts and scope.starts_hour -- it was charged in another hour than the current one
    scope.counts = scope.counts and not is_late
    save(scope, {})
    if is_late then add_finished_usage(label_of(scope), scope.sums) end
    local watched_until = call('HGET', scope.key, '!')
    -- The scope is saved: an announcement that is denied must not make this an error, after which it would be repeated.
    if watched_until and tonumber(watched_until) > now then redis.pcall('PUBLISH', channel, scope.key) end
  end
end
write_now()
return lease_was_lost and 'L' or 'A'
