-- @take
local found = seen or call('HMGET', key, 's', 'c')
raw, counts[index] = found[1], found[2]

-- @settle undo credit
-- The record of a scope, what it has counted, and until when somebody watches it.
local found = call('HMGET', key, 's', 'w', 'c')
raw, watched[index], counts[index] = found[1], found[2], found[3]
