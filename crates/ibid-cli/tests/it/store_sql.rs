//! SQL on the database of a gateway's store, whichever kind it is.

use std::time::Duration;

use crate::harness::Setup;

impl Setup {
    /// Returns whether the store is a SQLite file.
    pub(crate) fn is_on_file(&self) -> bool {
        self.store().starts_with("sqlite:")
    }

    /// Runs statements, as a stranger or another release would.
    pub(crate) fn sql(&self, statements: &str) {
        if self.is_on_file() {
            open_file(self).execute_batch(statements).expect(statements);
        } else {
            run_on_server(self, statements);
        }
    }

    /// Returns the number that a query finds.
    pub(crate) fn number(&self, query: &str) -> i64 {
        if self.is_on_file() {
            return open_file(self).query_row(query, [], |row| row.get(0)).expect(query);
        }
        run_on_server(self, query).trim().parse().expect("a number")
    }
}

/// Runs statements in the client program of the server, and returns its output.
fn run_on_server(setup: &Setup, statements: &str) -> String {
    if let Some(server) = setup.server() {
        return server.sql(server.database(), statements);
    }
    let server = setup.mariadb().expect("a server with SQL");
    server.sql(server.database(), statements)
}

fn open_file(setup: &Setup) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(setup.database()).expect("the file opens");
    file.busy_timeout(LOCK_WAIT_MAX).expect("a timeout can be set");
    file
}

/// Longest wait for a gateway that writes to the file.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
