//! The databases that the suite runs on, and each driver's way to open a pool there.

use std::time::Duration;

use ibid::transaction::{DriverTx, TxError};
use ibid_testkit::mariadb::MariaDb;
use ibid_testkit::postgres::Postgres;
use tempfile::TempDir;

use super::Adapter;

pub(crate) use diesel::DieselPools;
pub(crate) use mysql_async::MysqlAsyncPools;
pub(crate) use sea_orm::SeaOrmPools;
pub(crate) use sqlx_mysql::SqlxMysqlPools;
pub(crate) use sqlx_postgres::SqlxPostgresPools;
pub(crate) use sqlx_sqlite::SqlxSqlitePools;
pub(crate) use tokio_postgres::TokioPostgresPools;

/// A database for one test.
pub(crate) struct TestDatabase {
    /// A URL of PostgreSQL or MariaDB, or the path of a file.
    pub(crate) at: String,
    server: Option<Postgres>,
    mariadb: Option<MariaDb>,
    _directory: Option<TempDir>,
}

impl TestDatabase {
    pub(crate) fn postgres() -> TestDatabase {
        TestDatabase::on(Postgres::shared())
    }

    /// Starts a separate server, which the test may stop or create roles on.
    pub(crate) fn own_postgres() -> TestDatabase {
        TestDatabase::on(Postgres::start())
    }

    fn on(server: Postgres) -> TestDatabase {
        // By default the server looks for a deadlock only after a second.
        let soon = format!("alter database {} set deadlock_timeout = '20ms'", server.database());
        server.sql(server.database(), &soon);
        TestDatabase { at: server.url(), server: Some(server), mariadb: None, _directory: None }
    }

    pub(crate) fn mariadb() -> TestDatabase {
        TestDatabase::on_mariadb(MariaDb::shared())
    }

    /// Starts a separate server, which the test may stop.
    pub(crate) fn own_mariadb() -> TestDatabase {
        TestDatabase::on_mariadb(MariaDb::start())
    }

    fn on_mariadb(server: MariaDb) -> TestDatabase {
        TestDatabase { at: server.url(), server: None, mariadb: Some(server), _directory: None }
    }

    /// Uses a database on a server that the caller owns.
    pub(crate) fn at(url: String) -> TestDatabase {
        TestDatabase { at: url, server: None, mariadb: None, _directory: None }
    }

    pub(crate) fn sqlite() -> TestDatabase {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("app.db").to_str().unwrap().to_owned();
        TestDatabase { at, server: None, mariadb: None, _directory: Some(directory) }
    }

    pub(crate) fn stop(&mut self) {
        match (self.server.take(), self.mariadb.take()) {
            (Some(mut server), _) => server.stop_immediate(),
            (None, server) => server.expect("a server").kill(),
        }
    }
}

pub(crate) struct RusqliteConnections;

impl Adapter for RusqliteConnections {
    type Db = ibid::transaction::rusqlite::Rusqlite;

    async fn open(test_db: &TestDatabase, _: usize, patience: Duration) -> Self::Db {
        let connection = rusqlite::Connection::open(&test_db.at).unwrap();
        connection.busy_timeout(patience).unwrap();
        ibid::transaction::rusqlite::Rusqlite::new(connection)
    }

    async fn by_caller(
        tx: &mut ibid::transaction::rusqlite::RusqliteTx,
        sql: &'static str,
    ) -> Result<(), TxError> {
        Ok(tx.execute_batch(sql)?)
    }
}

mod sqlx_sqlite {
    use ibid::transaction::sqlx_sqlite::{SqlxSqlite, SqlxSqliteTx};
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    use super::*;

    pub(crate) struct SqlxSqlitePools;

    impl Adapter for SqlxSqlitePools {
        type Db = SqlxSqlite;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> SqlxSqlite {
            let file = SqliteConnectOptions::new().filename(&test_db.at).create_if_missing(true);
            let pool = SqlitePoolOptions::new().max_connections(connections as u32);
            SqlxSqlite(pool.connect_with(file.busy_timeout(patience)).await.unwrap())
        }

        async fn by_caller(tx: &mut SqlxSqliteTx, sql: &'static str) -> Result<(), TxError> {
            sqlx::query(sql).execute(tx.conn()).await?;
            Ok(())
        }
    }
}

mod sqlx_postgres {
    use ibid::transaction::sqlx_postgres::{SqlxPostgres, SqlxPostgresTx};
    use sqlx::postgres::PgPoolOptions;

    use super::*;

    pub(crate) struct SqlxPostgresPools;

    impl Adapter for SqlxPostgresPools {
        type Db = SqlxPostgres;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> SqlxPostgres {
            let pool = PgPoolOptions::new().max_connections(connections as u32).acquire_timeout(patience);
            SqlxPostgres(pool.connect(&test_db.at).await.unwrap())
        }

        async fn by_caller(tx: &mut SqlxPostgresTx, sql: &'static str) -> Result<(), TxError> {
            sqlx::query(sql).execute(tx.conn()).await?;
            Ok(())
        }
    }
}

mod sqlx_mysql {
    use ibid::transaction::sqlx_mysql::{SqlxMysql, SqlxMysqlTx};
    use sqlx::mysql::MySqlPoolOptions;

    use super::*;

    pub(crate) struct SqlxMysqlPools;

    impl Adapter for SqlxMysqlPools {
        type Db = SqlxMysql;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> SqlxMysql {
            let pool = MySqlPoolOptions::new().max_connections(connections as u32).acquire_timeout(patience);
            SqlxMysql(pool.connect(&test_db.at).await.unwrap())
        }

        async fn by_caller(tx: &mut SqlxMysqlTx, sql: &'static str) -> Result<(), TxError> {
            sqlx::query(sql).execute(tx.conn()).await?;
            Ok(())
        }
    }
}

mod mysql_async {
    use ::mysql_async::prelude::Queryable;
    use ::mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};
    use ibid::transaction::mysql_async::{MysqlAsync, MysqlAsyncTx};

    use super::*;

    pub(crate) struct MysqlAsyncPools;

    impl Adapter for MysqlAsyncPools {
        type Db = MysqlAsync;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> MysqlAsync {
            let size = PoolConstraints::new(0, connections).unwrap();
            let options = OptsBuilder::from_opts(Opts::from_url(&test_db.at).unwrap());
            let options = options.pool_opts(PoolOpts::default().with_constraints(size));
            let pool = Pool::new(options);
            // The pool's own task runs where the pool is first used, and some tests have a runtime that ends early.
            drop(pool.get_conn().await.unwrap());
            MysqlAsync::new(pool).with_wait_max(patience)
        }

        async fn by_caller(tx: &mut MysqlAsyncTx, sql: &'static str) -> Result<(), TxError> {
            tx.query_drop(sql).await?;
            Ok(())
        }
    }
}

mod tokio_postgres {
    use ::tokio_postgres::NoTls;
    use deadpool_postgres::{Manager, Pool, Runtime};
    use ibid::transaction::tokio_postgres::{PooledTx, TokioPostgres};

    use super::*;

    pub(crate) struct TokioPostgresPools;

    impl Adapter for TokioPostgresPools {
        type Db = TokioPostgres;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> TokioPostgres {
            let pool = Pool::builder(Manager::new(test_db.at.parse().unwrap(), NoTls)).max_size(connections);
            TokioPostgres(pool.wait_timeout(Some(patience)).runtime(Runtime::Tokio1).build().unwrap())
        }

        async fn by_caller(tx: &mut PooledTx, sql: &'static str) -> Result<(), TxError> {
            tx.execute(sql, &[]).await?;
            Ok(())
        }
    }
}

mod diesel {
    use diesel_async::pooled_connection::AsyncDieselConnectionManager;
    use diesel_async::pooled_connection::deadpool::Pool;
    use diesel_async::{AsyncPgConnection, RunQueryDsl};
    use ibid::transaction::diesel::{Diesel, DieselTx};

    use super::*;

    pub(crate) struct DieselPools;

    impl Adapter for DieselPools {
        type Db = Diesel;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> Diesel {
            let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&test_db.at);
            let pool = Pool::builder(manager).max_size(connections).wait_timeout(Some(patience));
            Diesel(pool.runtime(deadpool_postgres::Runtime::Tokio1).build().unwrap())
        }

        async fn by_caller(tx: &mut DieselTx, sql: &'static str) -> Result<(), TxError> {
            ::diesel::sql_query(sql).execute(tx).await?;
            Ok(())
        }
    }
}

mod sea_orm {
    use ::sea_orm::{ConnectOptions, ConnectionTrait, Database};
    use ibid::transaction::sea_orm::{SeaOrm, SeaOrmTx};

    use super::*;

    pub(crate) struct SeaOrmPools;

    impl Adapter for SeaOrmPools {
        type Db = SeaOrm;

        async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> SeaOrm {
            let is_file = !test_db.at.starts_with("postgres:");
            let url = if is_file { format!("sqlite://{}?mode=rwc", test_db.at) } else { test_db.at.clone() };
            let mut options = ConnectOptions::new(url);
            options.max_connections(connections as u32).acquire_timeout(patience);
            options.map_sqlx_sqlite_opts(move |options| options.busy_timeout(patience));
            SeaOrm(Database::connect(options).await.unwrap())
        }

        async fn by_caller(tx: &mut SeaOrmTx, sql: &'static str) -> Result<(), TxError> {
            tx.execute_unprepared(sql).await?;
            Ok(())
        }
    }
}
