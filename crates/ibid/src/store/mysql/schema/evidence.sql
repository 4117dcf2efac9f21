-- Events from outside that tell the outcome of a record or effect, stored until they can be used, and remembered until no
-- provider delivers them again. Evidence may come before its record, so only the id ties it to one.
create table if not exists ibid_evidence (
  seq bigint not null auto_increment, -- set by the insert: order of arrival
  owner bigint,                     -- set by the insert: nonce of the attempt that ran or had run last; null if there was no record yet
  as_of bigint not null,            -- set by the insert: instant that the event is about
  purge_at bigint not null,         -- set by the insert, moved by the change that uses it: the row may be deleted
  open boolean not null,            -- set by the insert, cleared when it is used or dismissed
  nonce bigint not null,            -- set by the insert: drawn by the process that stored the event; tells which delivery was the first
  record binary(16) not null,       -- set by the insert: id of the record, or of the provider's name for the effect
  source varbinary(255) not null,   -- set by the insert: name of the provider
  event varbinary(1024) not null,   -- set by the insert: the provider's id of the event
  found longblob not null,          -- set by the insert: subject and outcome as CBOR
  primary key (seq),
  unique key ibid_evidence_once (source, event),
  key ibid_evidence_record (record, open, seq),
  key ibid_evidence_open (open, seq),
  key ibid_evidence_purge (purge_at)
) engine = InnoDB row_format = dynamic;
