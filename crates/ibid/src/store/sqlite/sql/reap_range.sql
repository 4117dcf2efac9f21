-- The range that the reaper has to visit next, if its instant is by ?1.
select first, last, at from ibid_reap_range where at <= ?1 order by at limit 1
