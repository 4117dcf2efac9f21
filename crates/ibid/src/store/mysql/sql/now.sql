-- The server's time.
select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
