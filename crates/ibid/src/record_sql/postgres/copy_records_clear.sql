-- Deletes the records whose ids are in the JSON array $1, with their bodies, before copy_records_put.sql.
with gone as (
  delete from ibid_record r
  using json_array_elements_text($1::text::json) x
  where r.id = x::uuid
  returning r.created_at, r.birth
)
delete from ibid_body b
using gone
where b.born_at = gone.created_at and b.birth = gone.birth
