-- What is there to collect. KEYS are the names of counts by hour, and the batch that nobody has forgotten; the plan says
-- how many go into one, and when collecting began: what is counted after that does not make a batch full.
-- The reply: that batch, or nothing, whether more than one batch is left, and then names, or nothing at all.
local most, began = unpack_from('<dd', plan)
local told = call('LRANGE', KEYS[3], 0, -1)
if #told > 0 then return told end
told = call('ZRANGE', KEYS[2], 0, most - 1)
if #told > 0 then
  local left = call('ZCOUNT', KEYS[2], '-inf', began / 3600000000)
  table.insert(told, 1, left > most and 'full' or '')
  table.insert(told, 1, '')
end
return told
