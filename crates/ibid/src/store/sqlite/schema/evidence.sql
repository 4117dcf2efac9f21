-- Evidence from outside about a record or an effect, stored until it can be used, and its event until it cannot be
-- redelivered. No foreign key: it may come before its record. Its number is never used again: it is a cursor.
create table ibid_evidence (
  seq integer primary key autoincrement, -- set by the first delivery
  source text not null,             -- set by the first delivery: where the event comes from
  event text not null,              -- set by the first delivery: the source's id of the event
  record blob not null,             -- set by the first delivery: id of the record, or digest of the effect's name
  owner integer,                    -- set by the first delivery: the attempt that ran or had run last then
  as_of integer not null,           -- set by the first delivery: the instant that the event is about
  purge_at integer not null,        -- set by the first delivery, and moved by the change that uses it
  open integer not null,            -- 1 from the first delivery until it is used or dismissed
  found blob not null,              -- set by the first delivery: subject and outcome, CBOR
  unique (source, event)            -- an event counts once
) strict;

create index ibid_evidence_record on ibid_evidence (record, seq) where open = 1;
create index ibid_evidence_open on ibid_evidence (seq) where open = 1;
create index ibid_evidence_purge on ibid_evidence (purge_at);
