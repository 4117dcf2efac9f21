-- All changes of a flight have one instant.
set @ibid_now = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6));
