-- Ranges that the reaper has to visit by ?1.
select first, last from ibid_reap_range where at <= ?1 order by first
