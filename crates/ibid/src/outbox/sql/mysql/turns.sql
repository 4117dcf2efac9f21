-- Picks up to ?1 turns: aggregates in which an effect was enqueued or has ended since the last look. The file of PostgreSQL says
-- why only a look unblocks. first_open.sql, blocked_lock.sql and unblock.sql follow for each aggregate, then turns_end.sql.
--
-- It runs under READ COMMITTED: each later statement sees all that the transaction of a turn wrote, and an enqueue never waits
-- for the gap behind the last turn.
select x.id, x.tenant, x.aggregate
from ibid_effect_turn x force index (primary)
where x.id > 0
order by x.id
limit ?1
for update skip locked
