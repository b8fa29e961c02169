-- Around every script that may write: beside its answer, it says whether it has written. A call that
-- wrote nothing waits for no replica.
local wrote = false
local function script()
