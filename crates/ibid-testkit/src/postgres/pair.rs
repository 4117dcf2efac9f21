//! A primary and the one standby that follows it: enough for a failover.

use std::thread;
use std::time::Instant;

use super::{HOST, LOOK_EVERY, Postgres, READY_WITHIN, USER};

/// Two servers, the second a copy of the first.
#[derive(Debug)]
pub struct Pair {
    /// The one that takes writes.
    pub primary: Postgres,
    /// The one that follows it, under the name [`Pair::STANDBY`].
    pub standby: Postgres,
}

impl Pair {
    /// How the standby calls itself.
    pub const STANDBY: &'static str = "second";

    /// Commits on the primary wait until the standby has them on disk.
    pub fn synchronous() -> Pair {
        let pair = Pair::asynchronous();
        let name = Pair::STANDBY;
        pair.primary.sql("postgres", &format!("alter system set synchronous_standby_names = '{name}'"));
        pair.primary.sql("postgres", "select pg_reload_conf()");
        pair.until_followed("sync_state = 'sync'");
        pair
    }

    /// Commits on the primary wait for nobody.
    pub fn asynchronous() -> Pair {
        let primary = Postgres::start();
        let standby = primary.standby(Pair::STANDBY, &[]);
        let pair = Pair { primary, standby };
        pair.until_followed("state = 'streaming'");
        pair
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

    fn until_followed(&self, how: &str) {
        let until = Instant::now() + READY_WITHIN;
        let look = format!("select count(*) from pg_stat_replication where {how}");
        while self.primary.sql("postgres", &look) != "1" {
            assert!(Instant::now() < until, "the standby does not follow:\n{}", self.standby.log());
            thread::sleep(LOOK_EVERY);
        }
    }
}
