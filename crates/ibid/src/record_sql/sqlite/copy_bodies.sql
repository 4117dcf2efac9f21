-- Read the bodies of the records whose ids are in the JSON array ?1, except those of responses.
select r.id, b.slot % 131072, b.data
from json_each(?1) x
cross join ibid_record r on r.id = unhex(x.value)
cross join ibid_body b on b.slot between r.row * 131072 + 2 and r.row * 131072 + 131071 and b.birth = r.birth
