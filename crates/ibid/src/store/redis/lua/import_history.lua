-- Adds the lines of a copied history that are not stored. A history only grows. KEYS 1 history 2 order of histories. ARGV 3 id 4… lines,
-- oldest first. Returns 1.
redis.call('ZADD', KEYS[2], micros(ARGV[4], 1), ARGV[3])
for at = 4 + redis.call('LLEN', KEYS[1]), #ARGV do
  redis.call('RPUSH', KEYS[1], ARGV[at])
end
return 1
