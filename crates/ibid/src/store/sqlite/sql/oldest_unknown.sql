-- When the record in state ?1 that ran longest ago did so; null: there is none.
select min(ifnull(ran_at, created_at)) from ibid_record indexed by ibid_record_open where watch_at is not null and state = ?1
