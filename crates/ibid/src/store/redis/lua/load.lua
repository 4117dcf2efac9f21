-- Reads a record. KEYS 1 record 2 bodies. Returns the time, the record, and the body of its response if that is stored apart.
local record = redis.call('GET', KEYS[1])
local body = record and record:byte(88) == 2 and redis.call('HGET', KEYS[2], '1')
return { now_s, now_us, record, body }
