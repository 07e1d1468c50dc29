-- Blocked, as BlockedRule in core/algorithms/rule.py: every request is rejected.
algorithms.blocked = {
  format = '<',
  take = function() return nil end,
  settle = function() return 0 end,
  share = function() return 0 end,
}
