-- Change what a request has charged, and return its permits.
--
-- The plan: settle, again (the answer to the first settlement was lost: usage is not counted twice), credit or undo; for
-- how long slices are recorded (0: not a slice), the channel on which returned amounts are announced, after its length,
-- and the request as in acquire.lua. The numbers: to undo, how many limits, and of each how much was in use before the
-- charge and the start of the window that it was charged to; then the changes, the holder, and the boundaries of calendars.
-- Replies: C and T as in acquire.lua, A done, L done, and a lease had run out, E nothing was done, since the lease of the
-- token has ended.
local verb, recorded_us, channel
verb, recorded_us, channel, plan_at = unpack_from('<sddc0', plan, plan_at)
local before_at, changes_at = NUMBERS_AT + 8, NUMBERS_AT
if verb == 'undo' then changes_at = before_at + 16 * unpack_from('<d', numbers, NUMBERS_AT) end
local scopes, calendar = load_request(plan_at, 1, changes_at, charged_at, true)
if not scopes then return 'C' .. pack('<d', now) .. calendar end

-- Change a state by what its limit has charged more or less; returns when it equals an unused one.
local function settle(scope, limit, rule, change)
  if rule ~= limit and (rule.letter == 'p' or limit.letter == 'p') then
    -- The limit has become a resource limit, or ceased to be one.
    if limit.letter == 'p' then return_lease(change, limit) end
    return 0
  end
  -- What a reset has forgotten is not refunded.
  local is_forgotten = charged_at + recorded_us < scope.reset_at
  if change < 0 and is_forgotten and verb ~= 'credit' and limit.letter ~= 'p' then return 0 end
  if rule ~= limit then change = scaled(change, rule.parts, limit.parts) end
  return algorithms[rule.letter](verb == 'again' and 'settle' or verb, limit.state, change, rule)
end

for _, scope in ipairs(scopes) do
  for _, limit in ipairs(scope.limits) do
    if limit.letter == 'p' and limit.c > 0 then
      if not has_token_lease(string.sub(numbers, after_amounts, after_amounts + 15), limit) then return 'E' end
    end
  end
end

local change_at = changes_at
for _, scope in ipairs(scopes) do
  for _, limit in ipairs(scope.limits) do
    local change
    change, change_at = unpack_from('<d', numbers, change_at)
    if change ~= 0 then
      local rule = limit.other or limit
      if verb == 'undo' then
        rule.before, rule.window = unpack_from('<dd', numbers, before_at + 2 * (change_at - changes_at - 8))
        -- Another rule counts in other parts: then nothing was in use before, so that less is returned.
        if rule ~= limit then rule.before = 0 end
      end
      limit.full_at = settle(scope, limit, rule, change)
      scope.full_at = math.max(scope.full_at, limit.full_at)
      scope.changed, limit.changed = true, true
      -- Permits that are returned were used; those of a request that was undone were not.
      if limit.usage > 0 and verb ~= 'again' and (limit.letter ~= 'p' or verb == 'undo') then
        count_usage(scope, limit, change)
      end
    end
  end
end

-- When a scope equals an unused one after a request was undone; nil where it is kept until the same time as before.
-- Permits have the number of the last holder.
local function unused_at(scope)
  if verb ~= 'undo' or scope.full_at == math.huge or scope.kept_until == ALWAYS then return nil end
  local full_at = 0
  for _, limit in ipairs(scope.limits) do
    local rule = limit.other or limit
    if rule.letter == 'p' then return nil end
    if algorithms[rule.letter]('used', limit.state, 0, rule) > 0 then
      if not limit.changed then return nil end
      full_at = math.max(full_at, limit.full_at)
    end
  end
  local is_alone = redis.call('HLEN', scope.key) <= scope.stored + (scope.stored_sums and 1 or 0)
  return is_alone and full_at or nil -- else other limits are kept there
end

for _, scope in ipairs(scopes) do
  if scope.changed then
    local full_at = unused_at(scope)
    if full_at then scope.full_at, scope.kept_until = full_at, 0 end -- else requests that are undone would fill the store
    local is_late = scope.counts and scope.starts_hour -- it was charged in another hour than the current one
    scope.counts = scope.counts and not is_late
    save(scope, not full_at)
    if is_late then add_finished_usage(label_of(scope, 0), scope.sums) end
    local watched_until = call('HGET', scope.key, '!')
    -- The scope is saved: an announcement that is denied must not make this an error, after which it would be repeated.
    if watched_until and tonumber(watched_until) > now then redis.pcall('PUBLISH', channel, scope.key) end
  end
end
if writes then write_now() end
return lease_was_lost and 'L' or 'A'
