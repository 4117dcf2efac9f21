-- The table of the articles.
create table if not exists idempotency_key (
  id bigserial primary key,
  tenant text not null,
  key text not null,
  request_hash bytea not null,
  state text not null default 'new',
  locked_until timestamptz,
  response bytea,
  created_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  unique (tenant, key)
)
