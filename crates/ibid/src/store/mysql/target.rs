//! The server that a URL names: how the URL is read, and how a connection is dialled.

use std::fmt;
use std::time::Duration;

use mysql_async::{Conn, Error, Opts, OptsBuilder};
use tokio::time::timeout;

use super::connection::{MysqlConnection, broken};
use super::{MysqlOpenError, MysqlOptions, open, tls};

/// A server and the options it is used with.
pub(super) struct MysqlTarget {
    opts: Opts,
    pub(super) options: MysqlOptions,
}

/// Without the driver's options, which have the password.
impl fmt::Debug for MysqlTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlTarget")
            .field("display_url", &self.display_url())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl MysqlTarget {
    /// Parses `url`. The error has nothing of the URL, because a password may be in it.
    pub(super) fn new(url: &str, mut options: MysqlOptions) -> Result<MysqlTarget, MysqlOpenError> {
        let opts = parse_url(url, &mut options)?;
        let opts = OptsBuilder::from_opts(opts)
            // Where the URL leads, and nowhere else.
            .prefer_socket(false)
            .tcp_keepalive(Some(KEEPALIVE))
            .stmt_cache_size(0)
            // These two would be asked for with a round trip each time; `open::check` reads what is needed.
            .max_allowed_packet(Some(DRIVER_PACKET_MAX))
            .wait_timeout(Some(DRIVER_WAIT_TIMEOUT))
            .connect_attribute("program_name", "ibid");
        Ok(MysqlTarget { opts: opts.into(), options })
    }

    /// Returns the URL without user and password, as it may be shown and logged.
    pub(super) fn display_url(&self) -> String {
        format_display_url(&self.opts)
    }

    /// Connects to a server that may be written to.
    pub(super) async fn connect(&self) -> Result<MysqlConnection, MysqlOpenError> {
        let mut connection = self.dial().await.map_err(|error| open::unreachable(self, error))?;
        open::check(self, &mut connection).await?;
        Ok(connection)
    }

    /// Connects to whatever server answers. The session has no settings yet.
    pub(super) async fn dial(&self) -> Result<MysqlConnection, Error> {
        match timeout(CONNECT_WITHIN, Conn::new(self.opts.clone())).await {
            Ok(conn) => conn.map(|conn| MysqlConnection::new(conn, self.options.reply_wait)),
            Err(_) => Err(broken(std::io::ErrorKind::TimedOut, "the server does not answer")),
        }
    }
}

/// Returns `url` without user, password and parameters. It touches nothing but the text.
pub(super) fn display_url_of(url: &str) -> Result<String, MysqlOpenError> {
    parse_url(url, &mut MysqlOptions::default()).map(|opts| format_display_url(&opts))
}

fn format_display_url(opts: &Opts) -> String {
    format!("mysql://{}:{}/{}", opts.ip_or_hostname(), opts.tcp_port(), opts.db_name().unwrap_or_default())
}

/// Takes the parameters, and lets the driver read the rest: user, password, host, port and database.
fn parse_url(url: &str, options: &mut MysqlOptions) -> Result<Opts, MysqlOpenError> {
    let bad = || MysqlOpenError::BadUrl;
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut tls_options = tls::MysqlTlsOptions::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=').ok_or_else(bad)? {
            ("hot_path", value) => options.hot_path = value.parse().map_err(|_| bad())?,
            ("durability", "weak") => options.accept_weak_durability = true,
            ("connections_max", value) => options.connections_max = value.parse().map_err(|_| bad())?,
            (name, value) if tls_options.take(name, value)? => {}
            _ => return Err(bad()),
        }
    }
    let opts = Opts::from_url(base).map_err(|_| bad())?;
    if opts.db_name().is_none() {
        return Err(bad());
    }
    tls_options.apply_to(opts)
}

/// Longest wait for a connection. A slower server is as good as down; a begin waits no longer than 2 s in all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time without traffic after which the operating system looks whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The largest packet of the protocol. The server's own limit is smaller, and the store keeps to it.
const DRIVER_PACKET_MAX: usize = 1 << 30;

/// The server's default, in seconds. Only the driver's own pool, which is not used, reads it.
const DRIVER_WAIT_TIMEOUT: usize = 28_800;

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<MysqlTarget, MysqlOpenError> {
        MysqlTarget::new(url, MysqlOptions::default())
    }

    #[test]
    fn parameters_of_a_url_win_over_options() {
        let target =
            target("mysql://u:p@h/d?connections_max=3&hot_path=false&durability=weak").expect("a URL");
        let options = &target.options;
        assert_eq!(
            (options.connections_max, options.accept_weak_durability, options.hot_path),
            (3, true, false)
        );
        for wrong in ["hot_path=1", "connections_max=-1", "durability=none", "x=y", "hot_path"] {
            let url = format!("mysql://h/d?{wrong}");
            assert!(matches!(self::target(&url), Err(MysqlOpenError::BadUrl)), "{wrong}");
        }
        for wrong in
            ["", "mysql://", "mysql://h", "mysql://h/", "postgres://h/d", "mysql:h/d", "mysql://h:x/d"]
        {
            assert!(matches!(self::target(wrong), Err(MysqlOpenError::BadUrl)), "{wrong}");
        }
    }

    #[test]
    fn a_target_is_shown_without_user_and_password() {
        let target = target("mysql://u:p%40ss@db.example:3307/pay").expect("a URL");
        assert_eq!(target.display_url(), "mysql://db.example:3307/pay");
        assert_eq!(target.opts.pass(), Some("p@ss"));
        assert!(!format!("{target:?}").contains("p@ss"));
        let error = self::target("mysql://u:hunter2@h/d?x=hunter2").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
