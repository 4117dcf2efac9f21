-- Returns whether this session knows a statement that another connection of this process prepared, under the name that it had
-- there. A pooler that supports prepared statements renames them.
select exists (select from pg_prepared_statements where statement = $1 and name ~ '^s[0-9]+$')
