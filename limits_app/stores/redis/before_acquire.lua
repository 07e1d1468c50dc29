local open, take, settle, view, share, tells_before = {}, {}, {}, {}, {}, false
