//! One server for all tests of a run, with separate databases for each test.
//!
//! A separate server costs a test a copy of the data directory, a start and a stop. A database costs a tenth of that.
//! Under `cargo nextest` each test is a process, so the first one that needs the server starts it together with a keeper
//! process. The keeper stops the server and removes its files as soon as the runner has ended, for whatever reason.
//! Elsewhere the server belongs to the process, like any other.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use super::install::{Install, PostgresRelease};
use super::{Postgres, data, is_ready, settings_at};
use crate::program::free_port;
use crate::server_files::Medium;
use crate::server_process::{port_of_run, runner, start_kept};

/// Returns a handle on the shared server.
pub(super) fn handle() -> Postgres {
    let (install, directory, port) = match std::env::var("NEXTEST_RUN_ID") {
        Ok(run) => of_run(&run),
        Err(_) => of_process(),
    };
    Postgres {
        install,
        directory,
        port,
        settings: Vec::new(),
        database: OnceLock::new(),
        databases: Mutex::default(),
        is_shared: true,
        running: None,
    }
}

/// Returns the server of this process. It ends with the process; the next process that starts a server removes its files.
fn of_process() -> (Install, PathBuf, u16) {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    let server = SERVER.get_or_init(|| Postgres::start_with(&SETTINGS));
    (server.install.clone(), server.directory.clone(), server.port)
}

/// Returns the server of this run of nextest. The first test starts it; the others wait for it.
fn of_run(run: &str) -> (Install, PathBuf, u16) {
    let install = Install::find(PostgresRelease::System);
    let runner = runner();
    let directory = install.shared_directory(runner, run);
    let port = port_of_run(
        &directory,
        || install.fill(&directory, Medium::Memory),
        || start(&install, runner, &directory),
    );
    (install, directory, port)
}

/// Starts the server and its keeper; `None` if the server ended instead of taking connections.
fn start(install: &Install, runner: i32, directory: &Path) -> Option<u16> {
    let port = free_port();
    let mut server = install.as_owner_while_we_live("postgres");
    server.arg("-D").arg(data(directory));
    let settings = SETTINGS.map(|(name, value)| (name, value.to_owned()));
    for (name, value) in settings_at(port).into_iter().chain(settings) {
        server.arg("-c").arg(format!("{name}={value}"));
    }
    start_kept(runner, directory, &server, || is_ready(directory, None)).then_some(port)
}

/// Many tests of one process may run at once, each with a pool or two. Their databases are dropped soon, so a small
/// log is enough.
const SETTINGS: [(&str, &str); 2] = [("max_connections", "400"), ("max_wal_size", "128MB")];
