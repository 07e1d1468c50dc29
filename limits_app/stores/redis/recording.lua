-- Keep a reply for as long as its link may ask for it.
local created = call('HSET', KEYS[1], 'r', pack('<dc0', number, reply))
if created == 1 or number % 16 == 0 then call('PEXPIRE', KEYS[1], 3600000) end
