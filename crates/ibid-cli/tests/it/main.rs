//! Black-box tests of the binary, as a shell, a client and an operator use it.

mod admin;
mod chains;
mod config;
mod copy;

mod h2_client;
mod harness;
mod middleware;
mod mount;

#[cfg(feature = "demo")]
mod demo;
mod deploy;
mod doctor;
mod gateway_answers;
mod gateway_async;
mod gateway_basic;
mod gateway_bounds;
mod gateway_browser;
mod gateway_crash;
mod gateway_drain;
#[cfg(feature = "dynamodb")]
mod gateway_dynamodb;
mod gateway_floods;
mod gateway_forward_key;
#[cfg(feature = "redis")]
mod gateway_front;
mod gateway_guarded;
mod gateway_hooks;
mod gateway_http;
mod gateway_key;
mod gateway_load;
mod gateway_logs;
mod gateway_metrics;
#[cfg(feature = "mysql")]
mod gateway_mysql;
#[cfg(feature = "otlp")]
mod gateway_otlp;
mod gateway_pass;
mod gateway_postgres;
mod gateway_reconcile;
#[cfg(feature = "redis")]
mod gateway_redis;
mod gateway_start;
mod gateway_store;
mod gateway_tenant;
mod gateway_tls;
mod gateway_trace;
mod gateway_upgrade;
mod gateway_upstream;
mod identity;
mod ledger;
mod progress;
mod reap;
mod resolve;
mod resolve_bulk;
mod restore;
mod sdk;
mod store_sql;
