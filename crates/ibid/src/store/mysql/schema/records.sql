-- Records, their bodies, policies, history and settings.
--
-- Instants are microseconds since 1970 by the server's clock. Nonces are unsigned 64-bit numbers stored with the same bits.
-- Codes are those of ibid-core. Every text is stored as bytes of UTF-8: with a collation, `abc` could equal `ABC` or `abc `.
-- Columns are null while they have their first value. A statement can be repeated: MySQL commits each of them by itself.
--
-- The instants of a record, who sets each one, and when:
--
-- | instant      | set by                       | to                                                                |
-- | ------------ | ---------------------------- | ----------------------------------------------------------------- |
-- | written_at   | every write but a renewal    | now: a writer reads it back after a write                         |
-- | created_at   | the first begin of a         | now; a later write of the same generation keeps it                |
-- |              | generation                   |                                                                   |
-- | ran_at       | each begin of an attempt     | now                                                               |
-- | completed_at | the finish                   | now                                                               |
-- | due_at       | begin, renewal               | end of the lease                                                  |
-- |              | a record that becomes        | next lookup, or next run by a worker; null if an operator must    |
-- |              | unknown, pending, retryable  | act or nothing has to happen                                      |
-- |              | the finish                   | null                                                              |
-- | expires_at   | the finish or release        | end of replay: now + retention                                    |
-- | purge_at     | the finish or release        | the row may be deleted: now + retention + tombstone               |
-- | reap_at      | every write but a renewal    | the earlier of expires_at and purge_at; null if there is no       |
-- |              |                              | purge_at; the largest number for a dead letter                    |
-- |              | the reaper                   | purge_at of a tombstone                                           |

-- Records: one for each pair of an operation and a key.
create table if not exists ibid_record (
  id binary(16) not null,           -- set by the insert: first 16 bytes of the digest of tenant, operation and key
  birth bigint not null,            -- set by the insert of a generation: its nonce
  created_at bigint not null,       -- set by the insert of a generation: first request
  written_at bigint not null,       -- set by every write but a renewal
  policy bigint not null,           -- set by every write: the policy's number in ibid_policy
  nonce bigint not null,            -- set by every write: with count the version, which fences writers
  count int unsigned not null,      -- set by every write: number of writes
  state tinyint not null,           -- set by every write: 1 pending, 2 in progress, 3 completed, 4 retryable, 5 unknown
  flags tinyint unsigned not null,  -- set by every write: 1 dead letter, 2 owed, 4 asynchronous, 8 response not retained; 128 set by the reaper: tombstone
  ran_at bigint,                    -- set by each begin of an attempt: its start
  due_at bigint,                    -- set by every write and by renewals: end of the lease, next lookup or next run
  completed_at bigint,              -- set by the finish: the response became final
  expires_at bigint,                -- set by the finish or release: replay ends
  purge_at bigint,                  -- set by the finish or release: the row may be deleted
  reap_at bigint,                   -- set by every write: position in the order of the reaper; see above
  owner bigint,                     -- set by each begin of an attempt: its nonce; null if it is the birth
  attempt int unsigned,             -- set by each begin of an attempt: number of attempts; null for 1
  point int unsigned,               -- set by each phase: number of the last committed phase; null for 0
  status smallint unsigned,         -- set by the finish: HTTP status, whether or not the response is stored
  tenant varbinary(255) not null,   -- set by the insert, blanked by the reaper in a tombstone
  method varbinary(255) not null,   -- set by the insert, blanked by the reaper in a tombstone
  path blob not null,               -- set by the insert, blanked by the reaper in a tombstone
  `key` varbinary(255) not null,    -- set by the insert, blanked by the reaper in a tombstone
  fingerprint varbinary(64),        -- set by the begin: digest of the request; null if no request holds the key
  note mediumblob,                  -- set by every write: further details as JSON; null if all have their defaults
  sealed_by varbinary(255),         -- set by a version that encrypts: id of the key under which body is sealed; null today
  `lines` mediumblob,               -- set by the finish: header lines of the response, `name: value` and a line feed each
  body blob,                        -- set by the finish: body of the response; null if it is larger than 1,024 bytes and in ibid_body
  primary key (id),
  -- Records by the instant at which upkeep must act. InnoDB adds the id to each entry.
  key ibid_record_due (state, due_at),
  -- Records in the order of the reaper; dead letters are at its end, where a list finds them.
  key ibid_record_reap (reap_at)
) engine = InnoDB row_format = dynamic;

-- Bodies that are stored apart from their record: requests, results of phases and large responses. The key begins with an
-- instant, so new rows are next to each other. A body has no id: it is found by its record's generation, and a write that
-- ends the generation deletes it.
create table if not exists ibid_body (
  born_at bigint not null,          -- set by the write that stores the body: the record's created_at
  birth bigint not null,            -- set by the write that stores the body: the record's birth
  kind int unsigned not null,       -- set by the write that stores the body: 1 response, 2 request, 16 + n result of phase n
  data longblob not null,           -- set by the write that stores the body
  primary key (born_at, birth, kind)
) engine = InnoDB row_format = dynamic;

-- Policies that records were begun with. The number is the first 8 bytes of the SHA-256 of the data, so it depends neither
-- on the order of arrival nor on a transaction that rolled back.
create table if not exists ibid_policy (
  digest bigint not null,           -- set by the first process that uses the policy: its number
  seen_at bigint not null,          -- set by each process that uses the policy, again and again
  lease_us bigint not null,         -- set with the digest: lease of the policy, by which renewals move due_at
  keep_us bigint not null,          -- set with the digest: retention and tombstone, the longest life of a record after its last write
  data mediumblob not null,         -- set with the digest: the policy as CBOR
  primary key (digest)
) engine = InnoDB row_format = dynamic;

-- History of records, for operators. It outlives its record.
create table if not exists ibid_event (
  seq bigint not null auto_increment, -- set by the insert: order of the lines
  at bigint not null,               -- set by the insert: instant of the event
  id binary(16) not null,           -- set by the insert: id of the record
  what varbinary(64) not null,      -- set by the insert: kind of event, for example `takeover`
  detail blob not null,             -- set by the insert: text for an operator
  primary key (seq),
  key ibid_event_id (id)
) engine = InnoDB row_format = dynamic;

-- Settings that all processes on this database must agree on, each changed by compare-and-set.
create table if not exists ibid_meta (
  name varbinary(255) not null,     -- set by the first writer: name of the setting
  value longblob not null,          -- set by each writer that wins
  primary key (name)
) engine = InnoDB row_format = dynamic;
