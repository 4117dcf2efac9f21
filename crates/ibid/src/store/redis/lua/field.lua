-- Reads a setting, or a policy. KEYS 1 all of them. ARGV 1 name.
return redis.call('HGET', KEYS[1], ARGV[1])
