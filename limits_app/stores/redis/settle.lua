-- Change what a request has charged, and return its permits.
--
-- The plan: what is done (0 settle, 1 credit, 2 undo), and the request. The numbers: the changes.
-- ARGV[3]: the holder of permits, 16 bytes; ARGV[4]: the channel on which returned amounts are announced.
-- Replies: C the record has another schema, T other calendars are needed, A done, N done in a scope without a record,
-- L done, and a lease had run out.
local action = unpack_from('<d', plan)
local request = read_request(9, 1)
read_amounts(request, numbers_at)
if not load_records(request) then return 'C' end

local lease_was_lost = false
for _, limit in ipairs(request.limits) do
  local algorithm, scope, change = limit.algorithm, limit.scope, limit.amount
  if change ~= 0 then
    local apply = algorithm.settle
    if action > 0 then apply = algorithm.credit or apply end
    if action == 2 then apply = algorithm.undo or apply end
    scope.full_at, scope.is_changed = max(scope.full_at, apply(limit, change)), true
    lease_was_lost = lease_was_lost or limit.lease_was_lost
    put_state(limit)
    -- Permits that are returned were used; those of a request that was undone were not.
    if algorithm.reclaim and action ~= 2 then limit.amount = 0 end
  end
end
count_usage(request, charged_at, false)
write_now()
for _, scope in ipairs(request.scopes) do
  if scope.is_changed then
    save(scope)
    if scope.watched_until and tonumber(scope.watched_until) > now then call('PUBLISH', ARGV[4], scope.key) end
  end
end
return reply_once(lease_was_lost and 'L' or request.has_new_scope and 'N' or 'A')
