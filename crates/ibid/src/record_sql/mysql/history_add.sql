-- Adds one line to the history of a record.
insert into ibid_event (id, at, what, detail)
values (?1, coalesce(?2, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))), ?3, ?4)
