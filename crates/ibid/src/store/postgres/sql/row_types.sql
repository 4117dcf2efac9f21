-- The types of what flight.sql takes, and of their elements.
select 'ibid_begin_row[]'::regtype::oid, 'ibid_begin_row'::regtype::oid,
       'ibid_replace_row[]'::regtype::oid, 'ibid_replace_row'::regtype::oid
