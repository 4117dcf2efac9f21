-- A table of ibid's that is not InnoDB's.
select table_name, engine
from information_schema.tables
where table_schema = database() and table_name like 'ibid!_%' escape '!' and table_type = 'BASE TABLE' and engine <> 'InnoDB'
limit 1
