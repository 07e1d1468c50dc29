local tells_before = true
