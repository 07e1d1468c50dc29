-- Change what a request has charged, and return its permits.
--
-- The plan: the action (0 settle, 1 credit, 2 undo), and the request as in acquire.lua. The numbers: the changes.
-- ARGV[3]: the holder of permits, 16 bytes; ARGV[4]: the channel on which returned amounts are announced; ARGV[5]: of a
-- request that is undone, its records after and before, as in the reply of acquire.lua: a record that is still the one
-- after it is replaced by the one before.
-- Replies: C the record has another schema, T other calendars are needed, A done, N done in a scope without a record,
-- L done, and a lease had run out.
local action, SETTLE, UNDO = unpack_from('<d', plan), 0, 2
local scopes, limits, at = load_scopes(9, 1, charged_at)
if not scopes then return 'C' end
calendars_at = numbers_at + limits * 8
if action == UNDO and ARGV[5] then
  local told = 1
  for index = 1, #scopes do
    local scope = scopes[index]
    local after, before = told + #scope.record - 1, told + 2 * #scope.record - 1
    if string.sub(ARGV[5], told, after) == scope.record then scope.restored = string.sub(ARGV[5], after + 1, before) end
    told = before + 1
  end
end

for _ = 1, limits do
  local change, name, scope_number, place, a, b, c, key, usage, parts, _
  name, scope_number, place, a, b, c, key, _, usage, parts, at = unpack_from('<sddddddddd', plan, at)
  change, numbers_at = unpack_from('<d', ARGV[2], numbers_at)
  if change ~= 0 and name ~= 'blocked' then
    local algorithm, scope = algorithms[name], scopes[scope_number]
    local apply = algorithm.settle
    if action ~= SETTLE then apply = algorithm.credit or apply end
    if action == UNDO then apply = algorithm.undo or apply end
    local state = {unpack_from(algorithm.format, scope.record, place)}
    scope.full_at, scope.is_changed = math.max(scope.full_at, apply(state, change, a, b, c, KEYS[key])), true
    scope.record = put(scope.record, place, pack(algorithm.format, unpack(state)))
    -- Permits that are returned were used; those of a request that was undone were not.
    if parts > 0 and (name ~= 'permits' or action == UNDO) then count_usage(scope, usage, change, parts) end
  end
end
for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
for index = 1, #scopes do
  local scope = scopes[index]
  if scope.is_changed then
    if scope.counts and scope.starts_hour then
      -- It was charged in another hour than the current one.
      add_finished_usage(unpack_from('s', plan, scope.label_at), scope.sums)
      scope.counts = false
    end
    scope.record = scope.restored or scope.record
    save(scope)
    local watched_until = call('HGET', scope.key, 'w')
    if watched_until and tonumber(watched_until) > now then call('PUBLISH', ARGV[4], scope.key) end
  end
end
return reply_once(lease_was_lost and 'L' or scopes.has_new and 'N' or 'A')
