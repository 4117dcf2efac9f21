-- Move a row that stays past its time from its range to the reaper's index, so that the range is done.
update ibid_record set reap_at = ?2 where row = ?1
