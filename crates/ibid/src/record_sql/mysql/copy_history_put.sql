-- Inserts the lines of the JSON array ?1, in its order, except those that are stored. A history only grows, and `line` is the
-- number of its lines before this one.
insert into ibid_event (id, at, what, detail)
select unhex(x.id), x.at, x.what, x.detail
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  n bigint path '$.n', line bigint path '$.line', id char(32) path '$.id', at bigint path '$.at',
  what longtext path '$.what', detail longtext path '$.detail'
)) x
where x.line >= (select count(*) from ibid_event e where e.id = unhex(x.id))
order by x.n
