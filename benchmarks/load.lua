-- Each request names a user at random: arguments are a header, the first user, how many there are, and a seed.
local header, first, users

function init(args)
  header, first, users = args[1], tonumber(args[2]), tonumber(args[3])
  math.randomseed(tonumber(args[4]))
end

function request()
  return wrk.format("GET", nil, {[header] = string.format("%d", first + math.random(0, users - 1))})
end

-- Requests, the microseconds that they took together, the p99 of their latencies in microseconds, and errors.
function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    "figures %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(99), failed))
end
