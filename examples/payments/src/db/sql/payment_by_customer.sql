-- payment_by_customer.sql: what payment_list.sql walks.
create index if not exists payment_by_customer on payment (account, customer_id, id)
