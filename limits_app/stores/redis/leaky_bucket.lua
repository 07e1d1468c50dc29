-- @take
take.leaky_bucket = take_draining

-- @settle
function settle.leaky_bucket(s, o, now, change, rate, tick_us)
  if change < 0 then return 0 end
  return settle_draining(s, o, now, change, rate, tick_us)
end

-- @undo credit
settle.leaky_bucket = settle_draining

-- @share
share.leaky_bucket = share_draining
