-- Counting usage, in scripts for scopes that do.
--
-- What waits to be collected is in one list, the last of KEYS, in the order in which it came. An entry is a letter, the
-- time in hours, and then, of `o`, a scope that counts: the field of its usage, its key and \0, and its label; of `c`, usage
-- of an hour that has ended or was collected, and of `r`, rejections (see reject.lua): the text that is collected.
-- Nothing else needs to be found in it: what is counted of a scope is in the field for the limits that it has.
local MOST_USAGE = 1000000 -- how many entries wait with one tag
local LOOKED_AT = 256 -- with every so many of them, the list is kept for longer, and what is too old is dropped
local TEXT_AT = 10
local waiting = KEYS[#KEYS]

-- The usage of a scope is the hour and a sum for each of its limits, in thousandths of units.
local SUMS_AT = 9

function count_usage(scope, limit, amount)
  local place = SUMS_AT + 8 * (limit[USAGE] - 1)
  local sum = unpack_from('<d', scope.sums, place) + floor(amount / limit[PARTS] * 1000 + 0.5)
  scope.sums = sub(scope.sums, 1, place - 1) .. pack('<d', sum) .. sub(scope.sums, place + 8)
  scope.counts = true
end

-- The field and the key of a scope in an entry, and where its label starts.
local function scope_of_entry(entry)
  local field_end = TEXT_AT + 4
  local key_end = string.find(entry, '\0', field_end + 1, true)
  return sub(entry, TEXT_AT, field_end), sub(entry, field_end + 1, key_end - 1), key_end + 1
end

-- Let a scope whose usage is no longer counted expire with its state.
local function release_usage(key, field)
  call('HDEL', key, field)
  local kept_until, has_usage = kept_for_others(key, {})
  if kept_until < ALWAYS and not has_usage then
    call('PEXPIRE', key, milliseconds(max(kept_until * 1e6 - now, least_idle_us)))
  end
end

local function drop_first(entry)
  call('LPOP', waiting)
  if sub(entry, 1, 1) ~= 'o' then return end
  local field, key = scope_of_entry(entry)
  local usage = call('HGET', key, field)
  -- Of a later hour, there is another entry.
  if usage and unpack_from('<d', usage) <= unpack_from('<d', entry, 2) then release_usage(key, field) end
end

-- Drop the two oldest entries; returns whether there were any.
function drop_oldest_usage()
  local entries = call('LRANGE', waiting, 0, 1)
  for _, entry in ipairs(entries) do drop_first(entry) end
  return #entries > 0
end

-- Drop entries that were not collected for too long; some of them, where there are many.
local function drop_old_usage()
  for _ = 1, 2 * LOOKED_AT do
    local entry = call('LINDEX', waiting, 0)
    if not entry or unpack_from('<d', entry, 2) * HOUR_US >= now - USAGE_KEPT_US then return end
    drop_first(entry)
  end
end

-- Add an entry. Those that were not collected for too long are dropped, and the oldest where there are too many.
local function keep_usage(letter, text)
  local count = call('RPUSH', waiting, letter .. pack('<d', now / HOUR_US) .. text)
  if count > MOST_USAGE then drop_oldest_usage() end
  if count % LOOKED_AT ~= 1 then return end
  call('PEXPIRE', waiting, milliseconds(2 * USAGE_KEPT_US))
  drop_old_usage()
end

-- Let the usage of an hour that is no longer counted wait.
function add_finished_usage(label, usage)
  if string.find(usage, '[^%z]', SUMS_AT) then keep_usage('c', label .. '\0' .. usage) end
end

-- Start to count an hour: the scope is noted, so that its usage is collected, and that of an earlier hour is finished.
function start_hour(scope, first_label)
  local label = label_of(scope, first_label)
  if scope.stored_sums then add_finished_usage(label, scope.stored_sums) end
  keep_usage('o', scope.usage_field .. scope.key .. '\0' .. label)
end
