-- KEYS: what is claimed. ARGV: ids.
for _, id in ipairs(ARGV) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('DEL', 'job:' .. id)
end
