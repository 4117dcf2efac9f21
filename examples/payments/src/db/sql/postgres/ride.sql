-- ride.sql: one row per ride, filled in phase by phase: the ride, its charge, its receipt.
create table if not exists ride (
    id           text collate "C" primary key,
    account      text   not null,
    customer_id  text   not null,
    origin       text   not null,
    destination  text   not null,
    amount_cents bigint not null check (amount_cents > 0),
    currency     text   not null,
    status       text   not null default 'pending' check (status in ('pending', 'succeeded', 'failed')),
    charge_id    text,
    receipt_id   text,
    record_id    bytea references ibid_record (id) on delete set null,
    created_at   bigint not null default (extract(epoch from statement_timestamp()) * 1000)::bigint
)
