-- @take
take.token_bucket = take_draining

-- @settle undo credit
settle.token_bucket = settle_draining

-- @share
share.token_bucket = share_draining
