-- Records by state, those among them with a flag of ?1, and since when the oldest runs.
select state, count(*), sum(flags & ?1 <> 0), min(ifnull(ran_at, created_at)) from ibid_record group by state
