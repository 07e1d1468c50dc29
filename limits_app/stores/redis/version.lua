-- Raise the version of the configuration by `step`, and at least to `least`; returns it.
local step, least = unpack_from('<dd', plan, plan_at)
local version = tonumber(call('GET', KEYS[1]) or 0)
local raised = math.max(version + step, least)
if raised > version then
  call('PERSIST', KEYS[1]) -- as write_to_known, also for a new key, so that a change of limits always applies
  call('SET', KEYS[1], whole(raised))
end
return whole(raised)
