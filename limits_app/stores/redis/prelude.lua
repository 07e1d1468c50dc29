-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan, the same for all requests of a kind. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
--
-- A scope is a hash. The field of a limit has its key as name, and as value the second until which the hash is kept, the
-- tag of the rule that wrote it, and the numbers of the state. A tag is the letter of the algorithm and what is needed to
-- read the state. Other fields: @ the second until which the hash is kept and the time of the last reset, # and the digest
-- of the limits' keys the usage of the current hour, ! until when a thread waits for the scope. A field of a limit that was
-- removed stays, with its use.
local call, pack, unpack_from, sub = redis.call, struct.pack, struct.unpack, string.sub
local floor, max, min = math.floor, math.max, math.min
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
local function idle_us(us) return max(us * idle_factor, least_idle_us) end
local function milliseconds(us) return min(floor(us / 1000) + 1, 1000000000000000) end

-- Every algorithm adds a function by its letter: (verb, state, amount, rule) that returns when the state equals an unused
-- one. `state` is the list of what the value of a field has, with the numbers from 3 on, which the function changes; `rule`
-- has the capacity, the parameters A to C of `Rule.lua`, and the key of the log or the leases. The verbs:
--   take    charge an amount; returns nil when it does not fit now
--   settle  charge a positive change, refund a negative one where the algorithm can
--   credit  a negative change that no claim holds
--   undo    refund a charge as if it had not been made; `rule.before` was in use before it
--   used    change nothing, and return the amount in use
-- `tags` say how what follows the letter in a tag is packed, and `formats` the numbers of a state.
-- `rejected` has functions without a verb that change the state to what the caller receives; for a log, it also returns
-- the time and the total of the entry with which the amount fits again.
-- All tags but those of permits begin with how much is counted for 1 of an amount: 1, or millionths of a currency.
-- `has_parts` names the letters whose tags go on with the parts of a unit; the other algorithms count whole units.
-- `reads` has functions (state, rule, limit) that return whether a limit reads a state of another rule as the same use, as
-- `Rule.carry` decides; letters with the same function read the states of each other. Without one, the use is converted.
-- `current` has functions (state, rule) that return whether the state was written before the clock was set back, and then
-- change it as `Rule.current` does.
-- A rule is a list, as a limit is in the plan; then follows where the next limit is. KEY becomes the key itself.
local FIELD, LETTER, TAG, FORMAT, SIZE, KEY, SOFT = 1, 2, 3, 4, 5, 6, 7
local USAGE, PARTS, CAPACITY, A, B, C, NEXT = 8, 9, 10, 11, 12, 13, 14
local algorithms, formats, tags, has_parts, rejected, reads, current = {}, {}, {}, {}, {}, {}, {}
local after_amounts, lease_was_lost, token_has_ended -- where the holder and boundaries are; see quota.lua and permits.lua
local periods, start_of_period, end_of_period -- see quota.lua

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

-- The second until which a scope has to be kept for all its limits but the `own` ones, and for its last reset; and whether
-- usage of it waits to be collected.
local function kept_for_others(key, own)
  local fields, latest, has_usage = call('HGETALL', key), 0, false
  for index = 1, #fields, 2 do
    local field = fields[index]
    if string.find(field, '^[%a@]') and not own[field] then
      latest = max(latest, (unpack_from('<I4', fields[index + 1])))
    end
    has_usage = has_usage or sub(field, 1, 1) == '#'
  end
  return latest, has_usage
end

-- The state of a limit that was never used: it is a list of what the value of its field has.
local function unused(rule) return {0, rule[TAG], 0, 0, 0, 0, 0, 0, 0, 0} end

-- Read a request, whose description is in the plan at `at` and whose keys start at KEYS[first_key]. Returns its scopes,
-- with their limits and the states of these as they count now; or nil where another rule has written a state, unless the
-- script has carry.lua, and with it the calendar that is needed to read this state, or ''.
-- The amounts are in the numbers at `amounts_at`, and what belongs to them follows.
-- Of each scope the plan has how many limits follow, whether it is kept while idle, how many sums its usage has, which of
-- the labels of the request is that of its usage, and the field of its usage. ARGV[3] has the labels of all requests.
-- Usage is counted in the hour of `time`.
-- `settles` is for claims that were charged before: then a state stays with the rule that wrote it, which is in `others`.
local function load_request(at, first_key, amounts_at, time, settles)
  local scopes, scope_count, total = {}, nil, nil
  scope_count, total, at = unpack_from('<dd', plan, at)
  after_amounts = amounts_at + 8 * total
  for index = 1, scope_count do
    local limit_count, lasting, sum_count, label, usage_field
    limit_count, lasting, sum_count, label, usage_field, at = unpack_from('<ddddc5', plan, at)
    local key, limits, states, fields = KEYS[first_key + index - 1], {}, {}, {}
    -- With all fields, since each that is added makes a table grow.
    local scope = {
      key = key, limits = limits, states = states, full_at = lasting > 0 and math.huge or 0, kept_until = 0, label = label,
      usage_field = usage_field, counts = false, is_known = false, is_moved = false, starts_hour = false, stored_sums = false, sums = false,
    }
    for place = 1, limit_count do
      local limit = {unpack_from('<sc1Bc0sddddddddd', plan, at)}
      at, limits[place], fields[place] = limit[NEXT], limit, limit[FIELD]
      if limit[KEY] > 0 then limit[KEY] = KEYS[first_key + limit[KEY] - 1] end
    end
    if sum_count > 0 then fields[#fields + 1] = usage_field end
    if settles then fields[#fields + 1] = '@' end
    local stored = #fields > 0 and call('HMGET', key, unpack(fields)) or {} -- a blocked scope has no fields
    for place = 1, limit_count do
      local limit, value = limits[place], stored[place]
      if not value then
        states[place] = unused(limit)
      else
        local state = #value == limit[SIZE] and {unpack_from(limit[FORMAT], value)}
        if state and state[2] == limit[TAG] then
          states[place] = state
        elseif not written_by_others then
          return nil, ''
        else
          local calendar = written_by_others(scope, place, value, settles)
          if calendar then return nil, calendar end
          state = states[place]
        end
        scope.is_known, scope.kept_until = true, max(scope.kept_until, state[1])
        local has_other_rule = scope.others and scope.others[place]
        if not has_other_rule and current[limit[LETTER]](state, limit) then scope.is_moved = true end
      end
    end
    if sum_count > 0 then
      local hour, sums = floor(time / HOUR_US), stored[limit_count + 1]
      scope.stored_sums, scope.starts_hour = sums, not sums or unpack_from('<d', sums) ~= hour
      scope.sums = scope.starts_hour and pack('<d', hour) .. string.rep('\0', 8 * sum_count) or sums
    end
    if settles then scope.reset_at = stored[#fields] and select(2, unpack_from('<I4d', stored[#fields])) or 0 end
    scopes[index] = scope
  end
  return scopes
end

-- Return the label of the usage of a scope; `first` is the first label of its request.
local function label_of(scope, first)
  local label, at = nil, 1
  for _ = 0, first + scope.label do label, at = unpack_from('s', ARGV[3], at) end
  return label
end

-- Return the value of the field of a limit, for the rule that wrote it.
local function value_of(rule, state, kept_until)
  state[1] = kept_until
  return pack(rule[FORMAT], unpack(state))
end

-- Save the states of a scope, or only those that have `changed`, which equal unused ones at `scope.full_at`, and keep the
-- scope until then. Appends their values, as the caller receives them, to `values`.
local function save(scope, values)
  local key, full_in, expires, kept_until = scope.key, scope.full_at - now, false, scope.kept_until
  local lives, fields, has_usage = idle_us(full_in), {}, scope.counts or scope.stored_sums
  if full_in == math.huge then
    kept_until = ALWAYS
  elseif kept_until == ALWAYS or scope.counts and scope.starts_hour
    or kept_until * 1000000 < now + max(full_in, lives / 2) then
    local own = {}
    for place = 1, #scope.limits do own[scope.limits[place][FIELD]] = true end
    local kept_for, has_other_usage = kept_for_others(key, own)
    kept_until, has_usage = max(kept_until < ALWAYS and kept_until or 0, kept_for), has_usage or has_other_usage
    if kept_until < ALWAYS then -- else use is kept that may return when the entity has its own limits again
      lives = max(lives, kept_until * 1000000 - now)
      kept_until, expires = min(floor((now + lives) / 1000000), ALWAYS - 1), true
    end
  end
  for place = 1, #scope.limits do
    if not scope.changed or scope.changed[place] then
      local limit = scope.limits[place]
      local rule = scope.others and scope.others[place] or limit
      local value = value_of(rule, scope.states[place], kept_until)
      values[#values + 1] = value
      if limit.unsaved then value = value_of(rule, limit.unsaved, kept_until) end
      fields[#fields + 1] = limit[FIELD]
      fields[#fields + 1] = value
    end
  end
  if scope.counts then
    fields[#fields + 1] = scope.usage_field
    fields[#fields + 1] = scope.sums
  end
  set_fields(key, fields)
  if full_in == math.huge and scope.kept_until ~= ALWAYS then call('PERSIST', key) end
  -- Usage is kept until it is collected.
  if has_usage and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then call('PEXPIRE', key, milliseconds(lives)) end
end
