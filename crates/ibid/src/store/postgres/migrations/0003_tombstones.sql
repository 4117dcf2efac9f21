-- Answers go when replay ends, rows when their tombstone does. The reaper comes by twice, so the order in which it comes
-- holds the next of the two instants: a finish enters one order as before, and moves in no further index.
alter table ibid_record add column bare boolean not null default false;  -- stripped: a tombstone

drop index ibid_record_purge;
create index ibid_record_reap on ibid_record ((case when bare then purge_at else least(expires_at, purge_at) end))
  where purge_at is not null;

-- What the reaper removes is to be used again before the tables grow: at a fiftieth of dead rows instead of a fifth.
alter table ibid_record set (autovacuum_vacuum_scale_factor = 0.02);
alter table ibid_body set (autovacuum_vacuum_scale_factor = 0.02);
