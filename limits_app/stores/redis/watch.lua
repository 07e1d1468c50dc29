-- Note for a while that somebody waits for what may be given back in scopes.
for index = 2, #KEYS do
  call('HSET', KEYS[index], 'w', whole(now + 30000000))
  local left = call('PTTL', KEYS[index])
  if left < 30000 and (left >= 0 or call('HEXISTS', KEYS[index], 's') == 0) then
    call('PEXPIRE', KEYS[index], 60000)
  end
end
return 'A'
