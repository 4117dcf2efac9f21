-- Counts what waits for an operator, each by an index: records in the state ?3, dead letters, and effects in the states ?1 and ?2.
select (select count(*) from ibid_record r force index (ibid_record_due) where r.state = ?3),
       (select count(*) from ibid_record r force index (ibid_record_reap) where r.reap_at = 9223372036854775807),
       (select count(*) from ibid_effect e force index (ibid_effect_state) where e.state = ?1),
       (select count(*) from ibid_effect e force index (ibid_effect_state) where e.state = ?2)
