-- payment_by_record.sql: the reaper clears the references to a record before it goes.
create index if not exists payment_by_record on payment (record_id) where record_id is not null
