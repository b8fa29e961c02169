end
local answer = script()
return { wrote and 1 or 0, answer }
