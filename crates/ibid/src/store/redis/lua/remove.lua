-- Deletes the pointer of an event, if it leads to the evidence that is purged. KEYS 1 pointer. ARGV 1 id that the evidence is about.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
