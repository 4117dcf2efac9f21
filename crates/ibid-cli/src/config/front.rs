//! `[front]`: a cache of completed responses in front of the store, which all gateways share.

use std::time::Duration;

use ibid::front::TIMEOUT;

use super::store::ServerUrl;
use super::toml_reader::{Reader, Section};
use super::units::show_duration;
use super::{EnvVars, at, non_empty};
use crate::front;
use crate::output::Failure;

/// The server of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontConfig {
    pub(crate) url: ServerUrl,
    /// Longest wait for one of its replies.
    pub(crate) timeout: Duration,
}

/// Reads the table; `None` if no server is named or there was an error.
pub(super) fn read(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    variables: &EnvVars,
    begin_timeout: Duration,
) -> Option<FrontConfig> {
    let mut section = root.section("front", "front");
    let in_file = section.text("url");
    let timeout = section.positive("timeout").unwrap_or(TIMEOUT);
    let timeout_max = begin_timeout / BEGIN_PART;
    if timeout > timeout_max {
        let line = section.line_of("timeout").unwrap_or(section.line);
        let failure =
            Failure::usage(format!("{}: `timeout` of `[front]` is too long", reader.position(line)));
        let cause = format!("a lookup is part of `begin_timeout`, {}", show_duration(begin_timeout));
        reader.keep(line, failure.because(cause).hint(format!("set at most {}", show_duration(timeout_max))));
    }
    let line = section.line_of("url").unwrap_or(section.line);
    let lacks_url = section.is_there() && section.line_of("url").is_none();
    section.finish();
    let (url, position, line) = match (non_empty(&variables.front), in_file) {
        (Some(url), _) => (url.to_owned(), "`IBID_FRONT`".to_owned(), 0),
        (None, Some(url)) => (url, format!("{}: `url`", reader.position(line)), line),
        (None, None) => {
            if lacks_url {
                reader.refuse(line, "`[front]` needs `url`");
            }
            return None;
        }
    };
    match front::display_url_of(&url) {
        Ok(shown) => Some(FrontConfig { url: ServerUrl::new(url, shown), timeout }),
        Err(failure) => {
            reader.keep(line, at(&position, failure));
            None
        }
    }
}

/// The part of `begin_timeout` that a reply of the cache may take. A lookup waits for one reply, and at most a moment for another.
const BEGIN_PART: u32 = 4;
