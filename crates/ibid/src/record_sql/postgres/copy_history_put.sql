-- Inserts the lines of the JSON array $1, in its order, except those that are stored. A history only grows, and `line` is the
-- number of its lines before this one.
insert into ibid_event (id, at, what, detail)
select x.id, x.at, x.what, x.detail
from json_to_recordset($1::text::json) x (n int8, line int8, id uuid, at int8, what text, detail text)
where x.line >= (select count(*) from ibid_event e where e.id = x.id)
order by x.n
