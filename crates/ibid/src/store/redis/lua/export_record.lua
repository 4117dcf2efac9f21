-- Reads a record with everything that is stored for it. KEYS 1 record 2 bodies. Returns the time, the record, and kinds and
-- bytes of all bodies in turn.
return { now_s, now_us, redis.call('GET', KEYS[1]), redis.call('HGETALL', KEYS[2]) }
