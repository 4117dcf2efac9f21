-- The types of what flight.sql takes, and of their elements.
select 'ibid_fresh_row[]'::regtype::oid, 'ibid_fresh_row'::regtype::oid,
       'ibid_finish_row[]'::regtype::oid, 'ibid_finish_row'::regtype::oid
