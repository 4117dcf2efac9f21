-- The table of the textbook solution.
create table idempotency_key (
  id bigint not null auto_increment primary key,
  tenant varchar(64) not null,
  `key` varchar(255) not null,
  request_hash varbinary(32) not null,
  state varchar(16) not null,
  response blob,
  created_at timestamp(6) not null default current_timestamp(6),
  unique key (tenant, `key`)
) engine = InnoDB
