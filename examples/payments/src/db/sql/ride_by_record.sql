-- ride_by_record.sql: the reaper clears the references to a record before it goes.
create index if not exists ride_by_record on ride (record_id) where record_id is not null
