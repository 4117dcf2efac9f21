-- payment_list.sql: a customer's payments, newest first, those before the cursor. Ids begin with their time.
select id, customer_id, amount_cents, currency, status, charge_id, created_at
  from payment
 where account = $1 and customer_id = $2 and id < $3
 order by id desc
 limit $4
