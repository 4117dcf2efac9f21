-- Open records by state, out of their index.
select state, count(*) from ibid_record indexed by ibid_record_open where watch_at is not null group by state
