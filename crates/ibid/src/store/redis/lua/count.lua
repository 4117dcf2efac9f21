-- Counts the dead letters and the records of each state in one bucket. KEYS 1 dead letters 2–6 orders of the states.
local counts = {}
for place, key in ipairs(KEYS) do
  counts[place] = redis.call('ZCARD', key)
end
return counts
