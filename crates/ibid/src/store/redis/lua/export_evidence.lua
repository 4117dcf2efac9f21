-- Reads evidence and the instant at which it is purged. KEYS 1 evidence 2 purge order. ARGV 1 digest of the event.
return { redis.call('GET', KEYS[1]), redis.call('ZSCORE', KEYS[2], ARGV[1]) }
