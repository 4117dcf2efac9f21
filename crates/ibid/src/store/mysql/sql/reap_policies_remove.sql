-- Removes policies. A process that begins to use one at this moment either moves seen_at first, and the row is compared again,
-- or inserts it again.
delete p from $rows straight_join ibid_policy p force index (primary) on p.digest = w.seq
where p.seen_at + p.keep_us + 86400000000 < timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
