-- Reads evidence, or the id that an event is about. KEYS 1 evidence or pointer.
return redis.call('GET', KEYS[1])
