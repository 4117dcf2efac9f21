-- Adds a turn for the aggregate of the effect ?1, which was enqueued or has ended. This transaction has written that row, so it
-- waits for no other.
insert into ibid_effect_turn (tenant, aggregate)
select e.tenant, e.aggregate from ibid_effect e where e.seq = ?1 and e.aggregate is not null
