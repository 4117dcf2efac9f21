//! A primary and the one standby that follows it: enough for a failover.

use std::thread;
use std::time::Instant;

use super::{HOST, LOOK_EVERY, Postgres, READY_WITHIN, USER};

/// Two servers, the second a copy of the first.
#[derive(Debug)]
pub struct PostgresPair {
    /// The one that takes writes.
    pub primary: Postgres,
    /// The one that follows it, under the name [`PostgresPair::STANDBY`].
    pub standby: Postgres,
}

impl PostgresPair {
    /// How the standby calls itself.
    pub const STANDBY: &'static str = "second";

    /// Commits on the primary wait until the standby has them on disk.
    pub fn synchronous() -> PostgresPair {
        let pair = PostgresPair::asynchronous();
        pair.make_synchronous();
        pair
    }

    /// Commits on the primary wait for nobody.
    pub fn asynchronous() -> PostgresPair {
        let primary = Postgres::start();
        let standby = primary.standby(PostgresPair::STANDBY, &[]);
        let pair = PostgresPair { primary, standby };
        pair.until_followed("state = 'streaming'");
        pair
    }

    /// From here on commits wait for the standby.
    pub fn make_synchronous(&self) {
        self.primary.set("synchronous_standby_names", PostgresPair::STANDBY);
        self.until_followed("sync_state = 'sync'");
    }

    /// A database on both, wherever the primary is by then.
    pub fn url_for(&self, database: &str) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("postgres://{USER}@{HOST}:{first},{HOST}:{second}/{database}")
    }

    /// Kills the primary as [`Postgres::kill`] does, and makes the standby the primary.
    pub fn fail_over(&mut self) {
        self.primary.kill();
        self.standby.promote();
    }

    /// The standby has what was committed so far, and hears of nothing that is committed from here on. Commits must
    /// not wait for it.
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
