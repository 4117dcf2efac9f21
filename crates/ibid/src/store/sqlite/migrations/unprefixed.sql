-- A file of the first layout, whose tables had the names that any application might want, becomes schema 1 with its
-- data in place. An index can't be renamed, so those with names of their own are made anew. The number of the schema
-- moves out of the header, which is the application's where a file is shared.
alter table record rename to ibid_record;
alter table body rename to ibid_body;
alter table policy rename to ibid_policy;
alter table event rename to ibid_event;
alter table meta rename to ibid_meta;
drop index record_due;
drop index record_purge;
drop index event_id;
create index ibid_record_due on ibid_record (state, due_at) where due_at is not null;
create index ibid_record_purge on ibid_record (purge_at) where purge_at is not null;
create index ibid_event_id on ibid_event (id);
pragma application_id = 0;
pragma user_version = 0;
