-- For logs and leases, which are under keys of their own.
--
-- An integer as text (tostring() loses digits); how long state is kept that equals unused state after `us`.
function whole(value) return string.format('%.0f', value) end
function idle_us(us) return math.max(us * idle_factor, least_idle_us) end

-- Logs and leases are written after everything was decided.
function write_later(...)
  writes = writes or {}
  writes[#writes + 1] = {...}
end
function write_now()
  for index = 1, #writes do redis.call(unpack(writes[index])) end
end
