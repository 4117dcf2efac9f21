
-- The end of begins.sql and finishes.sql on MariaDB, for which other servers take written.sql.
returning nonce, if(written_at = @ibid_now, @ibid_now, null)
