-- The id of a secret that a fingerprint of the rows after ?1 up to ?2 names, and that is not in the JSON array ?3 of hex ids.
select substr(fingerprint, 2, 4)
  from ibid_record
 where row > ?1 and row <= ?2 and fingerprint is not null and flags & 128 = 0
   and lower(hex(substr(fingerprint, 2, 4))) not in (select value from json_each(?3))
 limit 1
