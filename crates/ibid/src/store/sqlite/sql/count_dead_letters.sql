-- Records that an operator must look at, out of their index.
select count(*) from ibid_record indexed by ibid_record_dead_letter where flags & 1 = 1
