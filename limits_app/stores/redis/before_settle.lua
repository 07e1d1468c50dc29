-- Whether permits are given back that were not lent any more.
local lapsed = false
