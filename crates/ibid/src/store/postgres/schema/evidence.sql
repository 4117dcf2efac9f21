-- Events from outside that tell the outcome of a record or effect, stored until they can be used, and remembered until no
-- provider delivers them again. Evidence may come before its record, so only the id ties it to one.
create table ibid_evidence (
  seq int8 generated always as identity, -- set by the insert: order of arrival
  owner int8,                       -- set by the insert: nonce of the attempt that ran or had run last; null if there was no record yet
  as_of int8 not null,              -- set by the insert: instant that the event is about
  purge_at int8 not null,           -- set by the insert, moved by the change that uses it: the row may be deleted
  open boolean not null,            -- set by the insert, cleared when it is used or dismissed
  record uuid not null,             -- set by the insert: id of the record, or of the provider's name for the effect
  source text not null,             -- set by the insert: name of the provider
  event text not null,              -- set by the insert: the provider's id of the event
  found bytea not null,             -- set by the insert: subject and outcome as CBOR
  constraint ibid_evidence_pkey primary key (seq),
  constraint ibid_evidence_once unique (source, event)
);
create index ibid_evidence_record on ibid_evidence (record, seq) where open;
create index ibid_evidence_open on ibid_evidence (seq) where open;
create index ibid_evidence_purge on ibid_evidence (purge_at);
alter table ibid_evidence set (autovacuum_vacuum_scale_factor = 0.02);
