//! The reference application: a payments API that keeps its promise with money, and a card processor that does
//! not make it easy.
//!
//! `serve` is the application to copy; `provider` stands in for the world outside, which is none of its code.
//! Read [`api`] first: it shows in which order a request meets authentication, the check of its body, the guard and
//! the handler.

pub mod account;
pub mod api;
pub mod args;
pub mod charge;
pub mod currency;
pub mod db;
pub mod input;
pub mod intake;
pub mod ledger;
pub mod listen;
pub mod outgoing;
pub mod problem;
pub mod provider;
pub mod provider_client;
pub mod serve;
pub mod store;
