-- Takes up to ?1 turns: aggregates in which an effect was enqueued or has ended since the last look. unblock.sql follows for each.
-- One transaction writes at a time, so each turn comes with all that its transaction wrote.
delete from ibid_effect_turn
where id in (select x.id from ibid_effect_turn x order by x.id limit ?1)
returning tenant, aggregate
