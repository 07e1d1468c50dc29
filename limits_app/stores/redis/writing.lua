-- Writes wait until everything is decided; so does what is put back before it is kept.
local writes, restores = {}, {}
local function write(...)
  writes[#writes + 1] = {...}
end
