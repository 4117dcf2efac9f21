-- Answers go when replay ends, rows when their tombstone does. The reaper comes by twice, so the order in which it comes
-- holds the next of the two instants: a finish enters one order as before, and moves in no further index.
alter table ibid_record add column bare integer not null default 0;  -- 1 once stripped: a tombstone

drop index ibid_record_purge;
create index ibid_record_reap
  on ibid_record (iif(bare, purge_at, min(coalesce(expires_at, purge_at), purge_at))) where purge_at is not null;
