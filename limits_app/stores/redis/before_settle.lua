-- Whether permits are given back that were not lent any more.
local settle, lapsed = {}, false
