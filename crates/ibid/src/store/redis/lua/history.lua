-- Reads the last lines of a record's history. KEYS 1 history. ARGV 1 most lines.
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
