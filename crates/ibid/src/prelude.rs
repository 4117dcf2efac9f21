//! The types and traits that most services need, for `use ibid::prelude::*`.
//!
//! The stores and the adapters of drivers are here where their features are on.

pub use crate::attempt::Attempt;
pub use crate::engine::Settings;
pub use crate::ibid::Ibid;
pub use crate::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, SettledEffect, VerifyOutcome,
    Worker,
};
pub use crate::phase::{CallVerification, Care, DownstreamKey, OutsideCallError, PhaseError};
pub use crate::transaction::{
    Completion, Database, DriverTx, IsolatedDatabase, Isolation, SqlError, SqlFault, TxError, TxResponse,
    TxResult,
};
pub use crate::upkeep;
pub use ibid_core::effect::{EffectRules, NewEffect, Safety};
pub use ibid_core::policy::{OnLapse, OnServerError, Policy};
pub use ibid_core::response::Response;
pub use ibid_core::scope::Tenant;
pub use ibid_core::store::Store;

#[cfg(feature = "http")]
pub use crate::http::{
    GuardedRequest, HeldAttempt, IdempotencyLayer, Routes, TenantSource, TraceContext, UnreservedRequest,
};

pub use crate::store::clock::Clock;
pub use crate::store::memory::MemoryStore;

#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::{SqliteOptions, SqliteStore};

#[cfg(feature = "postgres")]
pub use crate::store::postgres::{PostgresOptions, PostgresStore};

#[cfg(feature = "mysql")]
pub use crate::store::mysql::{MysqlOptions, MysqlStore};

#[cfg(feature = "redis")]
pub use crate::store::redis::{RedisOptions, RedisStore};

#[cfg(feature = "redis")]
pub use crate::front::redis::{RedisFront, RedisFrontOptions};

#[cfg(feature = "sqlite")]
pub use crate::transaction::rusqlite::{Rusqlite, RusqliteTx};

#[cfg(feature = "sqlx-postgres")]
pub use crate::transaction::sqlx_postgres::{SqlxPostgres, SqlxPostgresTx};

#[cfg(feature = "sqlx-sqlite")]
pub use crate::transaction::sqlx_sqlite::{SqlxSqlite, SqlxSqliteTx};

#[cfg(feature = "sqlx-mysql")]
pub use crate::transaction::sqlx_mysql::{SqlxMysql, SqlxMysqlTx};

#[cfg(feature = "mysql-async")]
pub use crate::transaction::mysql_async::{MysqlAsync, MysqlAsyncTx};

#[cfg(feature = "tokio-postgres")]
pub use crate::transaction::tokio_postgres::{PooledTx, TokioPostgres};

#[cfg(feature = "diesel-async")]
pub use crate::transaction::diesel::{Diesel, DieselTx};

#[cfg(feature = "sea-orm")]
pub use crate::transaction::sea_orm::{SeaOrm, SeaOrmTx};
