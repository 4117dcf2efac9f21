-- Reads the bodies of the records whose ids are in the JSON array $1, except those of responses.
select uuid_send(r.id), b.kind::int8, b.data
from json_array_elements_text($1::text::json) x
cross join lateral (select r.* from ibid_record r where r.id = x::uuid) r
join ibid_body b on b.born_at = r.created_at and b.birth = r.birth
where b.kind <> 1
