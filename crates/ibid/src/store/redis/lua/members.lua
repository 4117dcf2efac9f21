-- Reads all members of the orders of one bucket at one moment. KEYS orders.
local members = {}
for place, order in ipairs(KEYS) do
  members[place] = redis.call('ZRANGE', order, 0, -1)
end
return members
