-- Whether a statement that another connection of ours prepared is known here under its own name. A pooler that follows
-- prepared statements gives them names of its own.
select exists (select from pg_prepared_statements where statement = $1 and name ~ '^s[0-9]+$')
