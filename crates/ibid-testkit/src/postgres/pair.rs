//! A primary and one standby that follows it: enough for a failover.

use std::thread;
use std::time::Instant;

use super::{Postgres, USER};
use crate::server_process::{HOST, LOOK_EVERY, READY_WITHIN};

/// Two servers, the second a copy of the first.
#[derive(Debug)]
pub struct PostgresPair {
    /// The server that takes writes.
    pub primary: Postgres,
    /// The server that follows it, under the name [`PostgresPair::STANDBY`].
    pub standby: Postgres,
}

impl PostgresPair {
    /// The `application_name` of the standby.
    pub const STANDBY: &'static str = "second";

    /// Starts a pair in which commits on the primary wait until the standby has them on disk.
    pub fn synchronous() -> PostgresPair {
        let pair = PostgresPair::asynchronous();
        pair.make_synchronous();
        pair
    }

    /// Starts a pair in which commits on the primary do not wait for the standby.
    pub fn asynchronous() -> PostgresPair {
        let primary = Postgres::start();
        let standby = primary.standby(PostgresPair::STANDBY, &[]);
        let pair = PostgresPair { primary, standby };
        pair.until_followed("state = 'streaming'");
        pair
    }

    /// Makes commits wait for the standby from now on.
    pub fn make_synchronous(&self) {
        self.primary.set("synchronous_standby_names", PostgresPair::STANDBY);
        self.until_followed("sync_state = 'sync'");
    }

    /// Returns a URL that names both servers, and so finds the current primary.
    pub fn url_for(&self, database: &str) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("postgres://{USER}@{HOST}:{first},{HOST}:{second}/{database}")
    }

    /// Kills the primary as [`Postgres::kill`] does, and makes the standby the primary.
    pub fn fail_over(&mut self) {
        self.primary.kill();
        self.standby.promote();
    }

    /// Waits until the standby has every commit so far, then stops its replication. Commits must not wait for the
    /// standby.
    pub fn cut_off(&self) {
        let now = self.primary.sql("postgres", "select pg_current_wal_lsn()");
        self.until_followed(&format!("flush_lsn >= '{now}'"));
        self.standby.set("primary_conninfo", "");
        self.until("select count(*) = 0 from pg_stat_replication");
    }

    fn until_followed(&self, how: &str) {
        self.until(&format!("select count(*) = 1 from pg_stat_replication where {how}"));
    }

    fn until(&self, look: &str) {
        let until = Instant::now() + READY_WITHIN;
        while self.primary.sql("postgres", look) != "t" {
            assert!(Instant::now() < until, "it never came that `{look}`:\n{}", self.standby.log());
            thread::sleep(LOOK_EVERY);
        }
    }
}
