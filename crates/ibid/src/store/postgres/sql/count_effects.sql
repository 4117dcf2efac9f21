-- How many effects are in the state $1, or in the state $2 and never due.
select count(*) from ibid_effect where state = $1::int8::int2 or (state = $2::int8::int2 and due_at is null)
