-- Let the reaper visit the records from the row ?1 to ?2 at ?3. A range that starts there is of rows that are gone.
insert into ibid_reap_range (first, last, at) values (?1, ?2, ?3)
on conflict (first) do update set last = max(last, excluded.last), at = min(at, excluded.at)
