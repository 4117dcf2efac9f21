-- Insert the lines of the JSON array ?1, in its order, except those that are stored. A history only grows, and `line` is the
-- number of its lines before this one.
insert into ibid_event (id, at, what, detail)
select unhex(v ->> 'id'), v ->> 'at', v ->> 'what', v ->> 'detail'
from (select x.value as v from json_each(?1) x)
where v ->> 'line' >= (select count(*) from ibid_event e where e.id = unhex(v ->> 'id'))
order by v ->> 'n'
