-- Whether permits are given back that were not lent any more, and until when somebody watches each scope.
local lapsed, watched = false, {}
