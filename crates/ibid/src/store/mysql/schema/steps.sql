-- Steps of ibid's schema that were taken.
create table if not exists ibid_schema_step (
  number int not null,              -- set when the step is taken: its number
  digest binary(32) not null,       -- set when the step is taken: SHA-256 of its statements
  needs_at_least int not null,      -- set when the step is taken: the last step that a program must know to use the schema
  primary key (number)
) engine = InnoDB row_format = dynamic;
