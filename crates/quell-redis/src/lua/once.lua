-- Around every script that writes: a call that comes twice, because its answer got lost and a
-- client sent it again, is not done twice. The last key keeps the numbers of a process's calls, one
-- in each of its places; the last two arguments are the place and the number, the place empty where
-- no client sends again.
local place, number = ARGV[#ARGV - 1], ARGV[#ARGV]
if place ~= '' and redis.call('HGET', KEYS[#KEYS], place) == number then
  return 'twice'
end
-- Set by the script once it has written.
local wrote = false
local function script()
