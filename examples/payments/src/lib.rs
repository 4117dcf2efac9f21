//! The reference application: a payments API on axum and sqlx that survives crashes, retries and lost responses.
//!
//! Read [`api`] first: it shows the order in which a request meets authentication, validation, ibid and the handler. Then
//! [`payments`] (one transaction and an outbox), [`worker`] (the call to the card processor) and [`rides`] (phases).

pub mod account;
pub mod api;
pub mod config;
pub mod db;
pub mod input;
pub mod payments;
pub mod problem;
pub mod processor;
pub mod rides;
pub mod serve;
pub mod worker;
