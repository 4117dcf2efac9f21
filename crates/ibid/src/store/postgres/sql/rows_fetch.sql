-- A few hundred kilobytes at a time.
fetch forward 1000 from ibid_rows
