-- A secret's id that some fingerprint names after its first byte, and that is not among those known.
select substring(fingerprint from 2 for 4)
  from ibid_record
 where fingerprint is not null and not bare and substring(fingerprint from 2 for 4) <> all ($1::bytea[])
 limit 1
