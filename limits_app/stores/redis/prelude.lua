-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan, the same in every call. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
--
-- A scope is a hash. The field of a limit has its key as name, and as value the second until which the hash is kept, the
-- tag of the rule that wrote it, and the numbers of the state. A tag is the letter of the algorithm and what is needed to
-- read the state. Other fields: @ the second until which the hash is kept and the time of the last reset, # the usage of
-- the current hour, ! until when a thread waits for the scope. A field of a limit that was removed stays, with its use.
local call, pack, unpack_from, sub = redis.call, struct.pack, struct.unpack, string.sub
local plan, numbers = ARGV[1], ARGV[2]
local now, charged_at = unpack_from('<dd', numbers)
local NUMBERS_AT = 17 -- where the numbers of the verb start

local idle_factor, least_idle_us, plan_at = unpack_from('<dd', plan)
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local MOST_DEBT = 4503599627370496 -- as DEBT_PARTS in engine/algorithms/rule.py
local HOUR_US, USAGE_KEPT_US = 3600000000, 694800000000 -- the second: KEPT_HOURS of engine/counting.py, and an hour
local ALWAYS = 4294967295 -- the second until which scopes are kept that do not expire
local RESET_KEPT_US = 86400000000 -- as in engine/engine.py
local NEVER = 9007199254740992 -- as NEVER_US in engine/algorithms/rule.py

-- An integer as text (tostring() loses digits); how long state is kept that equals unused state after `us`;
-- milliseconds for an expiry (servers reject more than 30,000 years).
local function whole(value) return string.format('%.0f', value) end
local function idle_us(us) return math.max(us * idle_factor, least_idle_us) end
local function milliseconds(us) return math.min(math.floor(us / 1000) + 1, 1000000000000000) end

-- Every algorithm adds a function by its letter: (verb, state, amount, rule) that returns when the state equals an unused
-- one. `state` is the list of its numbers, which the function changes; `rule` has the capacity, the parameters a to c of
-- `Rule.lua`, and the key of the log or the leases. The verbs:
--   take    charge an amount; returns nil when it does not fit now
--   settle  charge a positive change, refund a negative one where the algorithm can
--   credit  a negative change that no claim holds
--   undo    refund the charge of a moment ago
--   used    change nothing, and return the amount in use
-- `formats` say how the numbers of a state are packed, and `tags` what follows the letter in a tag.
-- `rejected` has functions without a verb that change the state to what the caller receives; for a log, it also returns
-- the time and the total of the entry with which the amount fits again.
-- `current` has functions (state, rule) that return whether the state was written before the clock was set back, and then
-- change it as `Rule.current` does.
local algorithms, formats, tags, rejected, current = {}, {}, {}, {}, {}
local after_amounts, lease_was_lost -- where the holder and boundaries are; see quota.lua and permits.lua
local periods, start_of_period -- see quota.lua

-- Logs and leases are written after everything was decided.
local writes
local function write_later(...)
  writes = writes or {}
  writes[#writes + 1] = {...}
end
local function write_now()
  for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
end
local count_usage, start_hour, add_finished_usage, drop_oldest_usage -- see usage.lua
local written_by_others -- see carry.lua

-- A server whose memory is full refuses the first write of a script if the command may need more memory, but none of
-- the later ones. So scripts that change known scopes begin with a write that has no effect.
local function write_to_known(key) call('HDEL', key, '') end

-- Write fields of a scope, which may be the first write.
local function set_fields(key, fields)
  if type(redis.pcall('HSET', key, unpack(fields))) == 'table' then
    write_to_known(key)
    call('HSET', key, unpack(fields))
  end
end

-- The second until which a scope has to be kept for all its limits but the `own` ones, and for its last reset.
local function kept_for_others(key, own)
  local fields, latest = call('HGETALL', key), 0
  for index = 1, #fields, 2 do
    local field = fields[index]
    if string.find(field, '^[%a@]') and not own[field] then
      latest = math.max(latest, (unpack_from('<I4', fields[index + 1])))
    end
  end
  return latest
end

-- Read a request, whose description is in the plan at `at` and whose keys start at KEYS[first_key]: its scopes, and its
-- limits with their states as they count now. Returns nil where another rule has written a state, unless the script has
-- carry.lua, and with it the calendar that is needed to read this state, or ''.
-- The amounts are in the numbers at `amounts_at`, and what belongs to them follows.
-- Of each scope the plan has how many limits follow, whether it is kept while idle, how many sums its usage has, which of
-- the labels is that of its usage, and the digest of their keys. The labels follow the description. Usage is counted in
-- the hour of `time`.
-- `settles` is for claims that were charged before: then a state stays with the rule that wrote it.
local function load_request(at, first_key, amounts_at, time, settles)
  local start, scopes, limits = at, {}, {}
  local scope_count, total, labels_at
  scope_count, total, labels_at, at = unpack_from('<ddd', plan, at)
  after_amounts = amounts_at + 8 * total
  for index = 1, scope_count do
    local limit_count, lasting, sum_count, label, digest
    limit_count, lasting, sum_count, label, digest, at = unpack_from('<ddddc4', plan, at)
    local key, fields = KEYS[first_key + index - 1], {}
    local scope = {key = key, limits = {}, full_at = lasting > 0 and math.huge or 0, kept_until = 0, is_new = true}
    for place = 1, limit_count do
      local limit = {scope = scope}
      limit.field, limit.tag, limit.key, limit.is_soft, limit.usage, limit.parts, limit.capacity, limit.a, limit.b, limit.c, at
        = unpack_from('<sBc0dddddddd', plan, at)
      limit.key, limit.letter, limit.rule = KEYS[first_key + limit.key - 1], sub(limit.tag, 1, 1), limit
      fields[place], scope.limits[place], limits[#limits + 1] = limit.field, limit, limit
    end
    if sum_count > 0 then fields[#fields + 1] = '#' end
    if settles then fields[#fields + 1] = '@' end
    local stored = #fields > 0 and call('HMGET', key, unpack(fields)) or {} -- a blocked scope has no fields
    for place = 1, limit_count do
      local limit, value = scope.limits[place], stored[place]
      local tag = limit.tag
      if not value then
        limit.state = {0, 0, 0, 0, 0, 0, 0, 0}
      else
        scope.is_new, scope.kept_until = false, math.max(scope.kept_until, (unpack_from('<I4', value)))
        if sub(value, 5, 4 + #tag) == tag then
          limit.state = {unpack_from(formats[limit.letter], value, 5 + #tag)}
        else
          local needed = written_by_others and written_by_others(limit, value, settles) or not written_by_others and ''
          if needed then return nil, needed end
        end
        if limit.rule == limit and current[limit.letter](limit.state, limit) then scope.is_moved = true end
      end
    end
    if sum_count > 0 then
      local hour, sums = math.floor(time / HOUR_US), stored[limit_count + 1]
      local head = pack('<dc4', hour, digest)
      scope.stored_sums, scope.label, scope.labels_at = sums, label, start + labels_at
      scope.starts_hour = not sums or sub(sums, 1, 12) ~= head
      scope.sums = scope.starts_hour and head .. string.rep('\0', 8 * sum_count) or sums
    end
    if settles then scope.reset_at = stored[#fields] and select(2, unpack_from('<I4d', stored[#fields])) or 0 end
    scopes[index] = scope
  end
  return scopes, limits
end

-- Return the amounts of a request, one for each of its limits.
local function amounts_of(at, limits) return {unpack_from('<' .. string.rep('d', #limits), numbers, at)} end

-- Return the label of the usage of a scope.
local function label_of(scope)
  local label, at = nil, scope.labels_at
  for _ = 0, scope.label do label, at = unpack_from('s', plan, at) end
  return label
end

-- Return the value of the field of a limit.
local function value_of(limit, state, kept_until)
  local rule = limit.rule
  return pack('<I4', kept_until) .. rule.tag .. pack(formats[rule.letter], unpack(state))
end

-- Save the states of a scope, which equal unused ones at `scope.full_at`, and keep it until then. Appends their values, as
-- the caller receives them, to `values`.
local function save(scope, values)
  local key, full_in, expires, kept_until = scope.key, scope.full_at - now, false, scope.kept_until
  local lives, fields = idle_us(full_in), {}
  if full_in == math.huge then
    kept_until = ALWAYS
  elseif kept_until == ALWAYS or scope.counts and scope.starts_hour
    or kept_until * 1000000 < now + math.max(full_in, lives / 2) then
    local own = {}
    for _, limit in ipairs(scope.limits) do own[limit.field] = true end
    kept_until = math.max(kept_until < ALWAYS and kept_until or 0, kept_for_others(key, own))
    if kept_until < ALWAYS then -- else use is kept that may return when the entity has limits of its own again
      lives = math.max(lives, kept_until * 1000000 - now)
      kept_until, expires = math.min(math.floor((now + lives) / 1000000), ALWAYS - 1), true
    end
  end
  for _, limit in ipairs(scope.limits) do
    local value = value_of(limit, limit.state, kept_until)
    values[#values + 1] = value
    if limit.unsaved then value = value_of(limit, limit.unsaved, kept_until) end
    fields[#fields + 1] = limit.field
    fields[#fields + 1] = value
  end
  if scope.counts then
    fields[#fields + 1] = '#'
    fields[#fields + 1] = scope.sums
  end
  set_fields(key, fields)
  if full_in == math.huge and scope.kept_until ~= ALWAYS then call('PERSIST', key) end
  -- Usage is kept until it is collected.
  if (scope.counts or scope.stored_sums) and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then call('PEXPIRE', key, milliseconds(lives)) end
end
