-- Counts dead letters among records and effects, each through an index. Also returns since when the record in the state
-- ?1 that ran longest ago waits, and now.
select (select count(*) from ibid_record r force index (ibid_record_reap) where r.reap_at = 9223372036854775807),
       (select count(*) from ibid_effect e force index (ibid_effect_dead) where e.dead_letter = 1),
       (select min(coalesce(r.ran_at, r.created_at)) from ibid_record r force index (ibid_record_due) where r.state = ?1),
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
