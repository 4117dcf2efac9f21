-- The value of one setting, and the step of the schema that a program must know.
select (select value from ibid_meta where name = $1::text), (select max(needs_at_least) from ibid_schema_step)
