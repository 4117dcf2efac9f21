-- The application's tables. A row outlives the record of the request that made it.
create table if not exists payment (
    id           text collate "C" primary key,
    account      text   not null,
    customer_id  text   not null,
    amount_cents bigint not null check (amount_cents > 0),
    currency     text   not null,
    status       text   not null default 'pending' check (status in ('pending', 'succeeded', 'failed')),
    charge_id    text,
    record_id    uuid references ibid_record (id) on delete set null,
    created_at   bigint not null default (extract(epoch from statement_timestamp()) * 1000)::bigint
);
create index if not exists payment_by_customer on payment (account, customer_id, id);
-- The reaper clears the references to a record before it removes the record.
create index if not exists payment_by_record on payment (record_id) where record_id is not null;

-- Filled in phase by phase: the ride, its charge, its receipt.
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
    record_id    uuid references ibid_record (id) on delete set null,
    created_at   bigint not null default (extract(epoch from statement_timestamp()) * 1000)::bigint
);
create index if not exists ride_by_record on ride (record_id) where record_id is not null;
