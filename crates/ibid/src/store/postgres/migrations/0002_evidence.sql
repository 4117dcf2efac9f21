-- What somebody outside was heard to say about a record, kept until it can be used, and its event until it can't come
-- again. Nothing ties it to its record but the id: it may come before it.
create table ibid_evidence (
  seq int8 generated always as identity,
  owner int8,                       -- the attempt that ran or had run last when it arrived
  as_of int8 not null,              -- the instant that it speaks of
  purge_at int8 not null,
  open boolean not null,            -- neither used nor dismissed
  record bytea not null,
  source text not null,
  event text not null,
  found bytea not null,
  constraint ibid_evidence_pkey primary key (seq),
  constraint ibid_evidence_once unique (source, event)
);
create index ibid_evidence_record on ibid_evidence (record, seq) where open;
create index ibid_evidence_open on ibid_evidence (seq) where open;
create index ibid_evidence_purge on ibid_evidence (purge_at);
