-- Note for a while that somebody waits for what may be given back in scopes.
for index = 2, #KEYS do
  call('HSET', KEYS[index], 'w', whole(now + 30000000))
  if call('PTTL', KEYS[index]) < 30000 then call('PEXPIRE', KEYS[index], 60000) end
end
return 'A'
