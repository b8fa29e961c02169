-- Around every script that may write: beside its answer, it says whether it has written. What wrote
-- nothing needs nobody to have heard of it.
local wrote = false
local function script()
