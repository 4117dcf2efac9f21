//! The types and traits that most services need, for `use ibid::prelude::*`.
//!
//! The stores and the adapters of drivers are here where their features are on.

pub use crate::attempt::Attempt;
pub use crate::engine::Settings;
pub use crate::ibid::Ibid;
pub use crate::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, SettledEffect, VerifyOutcome, Worker,
};
pub use crate::transaction::{
    Completion, Database, DriverTx, Isolated, Isolation, TxError, TxResponse, TxResult,
};
pub use crate::upkeep;
pub use ibid_core::effect::NewEffect;
pub use ibid_core::policy::Policy;
pub use ibid_core::response::Response;
pub use ibid_core::scope::Tenant;

#[cfg(feature = "http")]
pub use crate::http::{
    GuardedRequest, HeldAttempt, IdempotencyLayer, Routes, TenantSource, UnreservedRequest,
};

pub use crate::store::clock::Clock;
pub use crate::store::memory::MemoryStore;

#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::{SqliteOptions, SqliteStore};

#[cfg(feature = "postgres")]
pub use crate::store::postgres::{PostgresOptions, PostgresStore};

#[cfg(feature = "sqlite")]
pub use crate::transaction::rusqlite::{Rusqlite, RusqliteTx};

#[cfg(feature = "sqlx-postgres")]
pub use crate::transaction::sqlx_postgres::{SqlxPostgres, SqlxPostgresTx};

#[cfg(feature = "sqlx-sqlite")]
pub use crate::transaction::sqlx_sqlite::{SqlxSqlite, SqlxSqliteTx};

#[cfg(feature = "tokio-postgres")]
pub use crate::transaction::tokio_postgres::{PooledTx, TokioPostgres};

#[cfg(feature = "diesel-async")]
pub use crate::transaction::diesel::{Diesel, DieselTx};

#[cfg(feature = "sea-orm")]
pub use crate::transaction::sea_orm::{SeaOrm, SeaOrmTx};
