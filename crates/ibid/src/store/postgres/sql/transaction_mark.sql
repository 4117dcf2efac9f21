-- The first number that no transaction has yet: every transaction that has written by now has a smaller one.
select txid_snapshot_xmax(txid_current_snapshot())
