-- Add one line to a record's history.
insert into ibid_event (id, at, what, detail) values (?1, ?2, ?3, ?4)
