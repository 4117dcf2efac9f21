-- What somebody outside was heard to say about a record, kept until it can be used, and its event until it can't come
-- again. No foreign key: it may come before its record. Its number is never used again: it is a cursor.
create table ibid_evidence (
  seq integer primary key autoincrement,
  source text not null,
  event text not null,
  record blob not null,
  owner integer,                    -- the attempt that ran or had run last when it arrived
  as_of integer not null,           -- the instant that it speaks of
  purge_at integer not null,
  open integer not null,            -- 1 while it is neither used nor dismissed
  found blob not null,
  unique (source, event)            -- an event counts once
) strict;

create index ibid_evidence_record on ibid_evidence (record, seq) where open = 1;
create index ibid_evidence_open on ibid_evidence (seq) where open = 1;
create index ibid_evidence_purge on ibid_evidence (purge_at);
