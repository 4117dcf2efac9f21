-- Reads all bodies of a record that are stored apart: kinds and bytes in turn. KEYS 1 bodies.
return redis.call('HGETALL', KEYS[1])
