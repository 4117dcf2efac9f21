-- Adds one line to the history of a record.
insert into ibid_event (id, at, what, detail)
values (
  encode($1::bytea, 'hex')::uuid, coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8),
  $3::text, $4::text
)
