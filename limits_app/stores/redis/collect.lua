-- Take counts into a batch; one that nobody has forgotten comes first, as it was. KEYS are the batch, scopes that may be
-- counting, and as in closing.lua; the plan says how long counts are kept. ARGV[3] is the name of the batch, and its name
-- and ARGV[4] are how it begins; what follows are names of counts, those of the scopes first.
-- The reply: the batch, or nothing where there was nothing.
local kept_us = unpack_from('<d', plan)
local batch, closed, hours, scopes = KEYS[2], KEYS[#KEYS - 1], KEYS[#KEYS], #KEYS - 4
local told = call('LRANGE', batch, 0, -1)
if #told > 0 then return told end
told = {ARGV[3], ARGV[4]}
for index = 5, #ARGV do
  local name, key = ARGV[index], KEYS[index - 2]
  local found = call('HGET', closed, name)
  if found and index - 4 > scopes then
    told[#told + 1] = string.sub(name, 2, 9) .. found
  elseif found then
    local raw, sums = unpack(call('HMGET', key, 's', 'c'))
    if sums and string.find(sums, '[^%z]', 9) then
      told[#told + 1] = string.sub(sums, 1, 8) .. found .. '\0' .. string.sub(sums, 9)
    end
    call('HDEL', key, 'c')
    -- It has lived on for its counts alone.
    local expires = raw and unpack_from('<I4', raw, 7) or 0
    if expires < 4294967295 then call('PEXPIRE', key, milliseconds(max(expires * 1000000 - now, least_idle))) end
  end
  call('HDEL', closed, name)
  call('ZREM', hours, name)
end
if #told == 2 then return {} end
call('RPUSH', batch, unpack(told))
call('PEXPIRE', batch, milliseconds(kept_us))
return told
