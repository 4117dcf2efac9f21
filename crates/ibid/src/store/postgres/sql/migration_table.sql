-- Which steps of ibid's schema were taken, and a digest of each.
create table ibid_migration (
  number int4 not null,
  digest bytea not null,
  constraint ibid_migration_pkey primary key (number)
);
