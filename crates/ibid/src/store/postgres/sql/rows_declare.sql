-- The caller's own statement follows.
declare ibid_rows no scroll cursor for
