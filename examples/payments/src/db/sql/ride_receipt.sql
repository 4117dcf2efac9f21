-- ride_receipt.sql: the receipt of a ride that is paid. There is one: no row changed means that it was there before.
update ride
   set receipt_id = $2
 where id = $1 and status = 'succeeded' and receipt_id is null
