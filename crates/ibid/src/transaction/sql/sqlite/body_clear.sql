-- Drop all that is kept beside one generation of a record.
delete from ibid_body
where slot between (select row from ibid_record where id = ?1) * 131072
               and (select row from ibid_record where id = ?1) * 131072 + 131071
  and birth = ?2
