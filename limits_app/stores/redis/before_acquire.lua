local tells_before = false
