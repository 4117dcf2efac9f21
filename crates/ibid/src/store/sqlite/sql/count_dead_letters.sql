-- Records that an operator must look at, at most ?1, out of their index.
select count(*) from (select 1 from ibid_record indexed by ibid_record_dead_letter where flags & 1 = 1 limit ?1)
