-- A secret's id that some fingerprint names after its first byte, and that is not in the JSON array ?1 of hex ids.
select substr(fingerprint, 2, 4)
  from ibid_record
 where fingerprint is not null and not bare
   and lower(hex(substr(fingerprint, 2, 4))) not in (select value from json_each(?1))
 limit 1
