-- Returns the steps that were taken.
select number, digest, needs_at_least from ibid_schema_step order by number
