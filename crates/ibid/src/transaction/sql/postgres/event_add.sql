-- One line of history.
insert into ibid_event (id, at, what, detail)
values ($1, coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8), $3::int8::int2, $4)
