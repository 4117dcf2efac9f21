//! Phases on a real database: a committed phase does not run again, whichever process resumes. An external call is
//! repeated, looked up or left to an operator, as it was declared.

mod external_call;
mod in_transaction;
mod key_window;
mod resume;
mod serialization;

use ibid_core::policy::{OnLapse, Policy};

use crate::adapters::databases::{
    MysqlAsyncPools, RusqliteConnections, SqlxMysqlPools, SqlxPostgresPools, SqlxSqlitePools, TestDatabase,
    TokioPostgresPools,
};
use crate::transaction::harness::NodeOnDatabase;

/// The policy for a handler that works in phases.
fn policy() -> Policy {
    Policy::one_transaction().with(|policy| policy.on_lapse = OnLapse::Resume)
}

macro_rules! every_rule {
    ($($driver:ident: $adapter:ty, $test_db:expr;)*) => {
        $(mod $driver {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn phases_keep_their_rules() {
                let world = NodeOnDatabase::<$adapter>::under(policy(), $test_db).await;
                in_transaction::every_rule(&world).await;
                external_call::every_rule(&world).await;
                key_window::every_rule(&world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_lapsed_request_goes_on_behind_the_guard() {
                let world = NodeOnDatabase::<$adapter>::under(policy(), $test_db).await;
                resume::every_rule(world).await;
            }
        })*
    };
}

every_rule! {
    rusqlite: RusqliteConnections, TestDatabase::sqlite();
    sqlx_sqlite: SqlxSqlitePools, TestDatabase::sqlite();
    sqlx_postgres: SqlxPostgresPools, TestDatabase::postgres();
    tokio_postgres: TokioPostgresPools, TestDatabase::postgres();
    mysql_async: MysqlAsyncPools, TestDatabase::mariadb();
    sqlx_mysql: SqlxMysqlPools, TestDatabase::mariadb();
}
