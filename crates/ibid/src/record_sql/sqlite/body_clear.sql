-- Delete all bodies apart from a record, of every generation. ?2 and ?3 are PostgreSQL's, and are named only so that they
-- can be bound.
delete from ibid_body
where slot between (select row from ibid_record where id = ?1) * 131072
               and (select row from ibid_record where id = ?1) * 131072 + 131071
  and ?2 is ?2 and ?3 is ?3
