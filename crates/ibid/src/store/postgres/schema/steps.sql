-- Steps of ibid's schema that were taken.
create table ibid_schema_step (
  number int4 not null,             -- set when the step is taken: its number
  digest bytea not null,            -- set when the step is taken: SHA-256 of its statements
  needs_at_least int4 not null,     -- set when the step is taken: the last step that a program must know to use the schema
  constraint ibid_schema_step_pkey primary key (number)
);
