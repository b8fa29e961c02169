-- R37: when upkeep looks again at an idempotency key that has expired while its job had not ended;
-- null where it has not looked yet. An older Quell writes keys without it.
alter table quell.idempotency add column look_at bigint;
create index idempotency_look on quell.idempotency (coalesce(look_at, expires_at));
drop index quell.idempotency_expires;
