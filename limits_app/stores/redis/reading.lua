-- @take
raw = call('HGET', key, 's')

-- @settle undo credit
-- The record of a scope, and until when somebody watches it.
local found = call('HMGET', key, 's', 'w')
raw, watched[index] = found[1], found[2]
