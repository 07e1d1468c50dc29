-- Who takes permits, and where in ARGV[2] the boundaries of calendars stand.
local holder, calendars = ARGV[3], 0

-- Writes wait until everything is decided; so does what is put back before it is kept.
local writes, restores
local function write(...)
  writes = writes or {}
  writes[#writes + 1] = {...}
end
