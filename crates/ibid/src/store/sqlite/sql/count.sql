-- Records by state, and those among them with a flag of ?1.
select state, count(*), sum(flags & ?1 <> 0) from ibid_record group by state
