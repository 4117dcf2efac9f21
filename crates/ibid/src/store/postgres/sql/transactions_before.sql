-- Whether every transaction with a smaller number has ended: no running one is older.
select txid_snapshot_xmin(txid_current_snapshot()) >= $1
