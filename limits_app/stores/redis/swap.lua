-- Replace records that are still what they were. The plan: how many, and in how many of their scopes something is counted;
-- then, from ARGV[3] on, for each record the old one, the new one, and how long it lives; then writes: a command, the number
-- of its key, and two arguments. What the old records have counted is closed.
-- Replies: A done, C something else has changed them.
local count, scopes, at = unpack_from('<dd', plan)
for index = 1, count do
  local raw = call('HGET', KEYS[1 + index], 's') or ''
  if raw ~= ARGV[index * 3] then return 'C' end
end
local first_wanted, moment, begins, counts, before = wanted, admitted_at, false, {}, 1
