-- Delete all bodies of the records whose ids are in the JSON array ?1, before copy_records_put.sql replaces these records.
delete from ibid_body
where slot in (
  select b.slot
  from json_each(?1) x
  cross join ibid_record r on r.id = unhex(x.value)
  cross join ibid_body b on b.slot between r.row * 131072 and r.row * 131072 + 131071
)
