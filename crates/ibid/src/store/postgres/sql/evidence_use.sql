-- Marks evidence as used, in the transaction of the change that it led to. Its event is remembered for $3 microseconds more.
update ibid_evidence
set open = false, purge_at = (extract(epoch from statement_timestamp()) * 1000000)::int8 + $3::int8
where source = $1::text and event = $2::text
