-- Requests of lower classes leave a share of a limit free for higher ones, as engine/algorithms/keeping.py: the amount
-- and the kept share have to fit together, and the amount is charged. An amount of 0 and a settlement know no class.
--
-- Only scripts for requests that leave something free have this file. It comes after those of the algorithms.
-- Functions of algorithms get a capacity without the kept share; `arguments` returns the verb, the amount and the rule.
local function leaving_free(change, arguments)
  return function(...)
    local verb, amount, rule = arguments(...)
    local keep = rule.keep
    if verb ~= 'take' or amount == 0 or not keep or keep <= 0 then return change(...) end
    rule.keep, rule.capacity = 0, rule.capacity - keep
    local first, second = change(...)
    rule.keep, rule.capacity = keep, rule.capacity + keep
    return first, second
  end
end

for letter, change in pairs(algorithms) do
  if change then
    algorithms[letter] = leaving_free(change, function(verb, _, amount, rule) return verb, amount, rule end)
  end
end
for letter, change in pairs(rejected or {}) do
  rejected[letter] = leaving_free(change, function(_, amount, rule) return 'take', amount, rule end)
end
