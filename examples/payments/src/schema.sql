-- The application's tables, on every database: `{text}` and `{record_id}` are replaced by its column types (see `db.rs`).
-- The ids in the last two lines of each table are unique anyway. `unique` makes an index that all three databases can create
-- with the table: for the list of payments, and for the reaper, which clears the references to a record that it removes.
create table if not exists payment (
    id           {text} primary key,
    account      {text} not null,
    customer_id  {text} not null,
    amount_cents bigint not null check (amount_cents > 0),
    currency     {text} not null,
    status       {text} not null default 'pending' check (status in ('pending', 'succeeded', 'failed')),
    charge_id    {text},
    created_at   bigint not null,
    record_id    {record_id},
    -- A row outlives the record of the request that made it.
    foreign key (record_id) references ibid_record (id) on delete set null,
    unique (account, customer_id, id),
    unique (record_id, id)
);

-- Filled in phase by phase: the ride, its charge, its receipt.
create table if not exists ride (
    id           {text} primary key,
    account      {text} not null,
    customer_id  {text} not null,
    origin       {text} not null,
    destination  {text} not null,
    amount_cents bigint not null check (amount_cents > 0),
    currency     {text} not null,
    status       {text} not null default 'pending' check (status in ('pending', 'succeeded', 'failed')),
    charge_id    {text},
    receipt_id   {text},
    created_at   bigint not null,
    record_id    {record_id},
    foreign key (record_id) references ibid_record (id) on delete set null,
    unique (record_id, id)
);
