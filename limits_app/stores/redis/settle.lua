-- Change what a request has charged, and return its permits.
--
-- The plan: settle, again (the answer to the first settlement was lost: usage is not counted twice), credit or undo; for
-- how long slices are recorded (0: it is none), the channel on which returned amounts are announced, after its length,
-- and the request as in acquire.lua. The numbers: the changes, the holder, and the boundaries of calendars.
-- Replies: C the record has another schema, T other calendars are needed, A done, N done in a scope without a record,
-- L done, and a lease had run out.
local verb, recorded_us, channel
verb, recorded_us, channel, plan_at = unpack_from('<sddc0', plan, plan_at)
local scopes, limits, at, has_new = load_scopes(plan_at, 1, charged_at)
if not scopes then return 'C' end
local number_at = NUMBERS_AT
after_amounts = number_at + limits * 8

for _ = 1, limits do
  local change, name, scope, place, usage, parts, key, a, b, c, d, _
  name, scope, place, _, usage, parts, at, key, a, b, c, d = next_limit(at, scopes, 1)
  change, number_at = unpack_from('<d', numbers, number_at)
  if change ~= 0 and name ~= 'blocked' then -- which has no state
    local full_at = 0
    -- What a reset has forgotten is not refunded.
    if change > 0 or verb == 'credit' or name == 'permits' or charged_at + recorded_us >= scope.record[3] then
      full_at = algorithms[name](verb == 'again' and 'settle' or verb, scope.record, place, change, key, a, b, c, d)
    end
    scope.full_at, scope.is_changed = math.max(scope.full_at, full_at), true
    -- Permits that are returned were used; those of a request that was undone were not.
    if parts > 0 and verb ~= 'again' and (name ~= 'permits' or verb == 'undo') then count_usage(scope, usage, change, parts) end
  end
end
if not has_new then write_to_known(scopes[1]) end
for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
for index = 1, #scopes do
  local scope = scopes[index]
  if scope.is_changed then
    if scope.counts and scope.starts_hour then
      -- It was charged in another hour than the current one.
      add_finished_usage(label_of(scope), scope.sums)
      scope.counts = false
    end
    save(scope)
    local watched_until = call('HGET', scope.key, 'w')
    -- The scope is saved: an announcement that is denied must not make this an error, after which it would be repeated.
    if watched_until and tonumber(watched_until) > now then redis.pcall('PUBLISH', channel, scope.key) end
  end
end
return lease_was_lost and 'L' or has_new and 'N' or 'A'
