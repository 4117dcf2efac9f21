-- Deletes the pointer of an event. KEYS 1 pointer.
return redis.call('DEL', KEYS[1])
