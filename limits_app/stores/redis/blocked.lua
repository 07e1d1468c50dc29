-- As core/algorithms/blocked.py: nothing passes.
-- @take
function take.blocked() return nil end

-- @settle undo credit
function settle.blocked() return 0 end

-- @share
function share.blocked() return 0 end
