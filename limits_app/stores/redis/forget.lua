-- Forget a batch, if it is the one that ARGV[3] names.
if call('LINDEX', KEYS[2], 0) == ARGV[3] then call('DEL', KEYS[2]) end
return 'A'
