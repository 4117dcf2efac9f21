-- Drop all that is kept beside a record.
delete from body
where slot between (select row from record where id = ?1) * 131072
               and (select row from record where id = ?1) * 131072 + 131071
