
-- The use of a policy that is there is noted if its last use was noted more than an hour ago.
on duplicate key update seen_at = if(seen_at < values(seen_at) - 3600000000, values(seen_at), seen_at)
