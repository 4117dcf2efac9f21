-- Evidence is used up in the transaction of the change that it led to.
update ibid_evidence
set open = false, purge_at = coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) + $4
where source = $2 and event = $3
