-- Adds a turn for the aggregate of the effect ?1, which was enqueued or has ended.
insert into ibid_effect_turn (tenant, aggregate)
select tenant, aggregate from ibid_effect where seq = ?1 and aggregate is not null
