//! `[server]`: limits on what clients can hold, and for how long.

use std::time::Duration;

use super::toml_reader::{Reader, Section};

/// The limits of the public listener. The reason for each default is in the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    pub(crate) max_connections: u32,
    pub(crate) max_streams: u32,
    pub(crate) max_resets: u32,
    pub(crate) max_guarded: u32,
    pub(crate) max_guarded_per_connection: u32,
    pub(crate) max_passed: u32,
    pub(crate) max_upstream_connections: u32,
    pub(crate) max_buffered_bytes: u64,
    pub(crate) max_reply_bytes: u64,
    pub(crate) header_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) stall_timeout: Duration,
    pub(crate) drain_for: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            max_connections: 4096,
            max_streams: 128,
            max_resets: 64,
            max_guarded: 8192,
            max_guarded_per_connection: 256,
            max_passed: 1024,
            max_upstream_connections: 8192,
            max_buffered_bytes: 256 << 20,
            max_reply_bytes: 128 << 20,
            header_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            drain_for: Duration::from_secs(25),
        }
    }
}

impl ServerConfig {
    /// Reads `[server]` and refuses limits that contradict each other. `largest_body` is the largest `max_request_body`
    /// of any route.
    pub(super) fn read(
        root: &mut Section<'_, '_>,
        reader: &Reader<'_>,
        largest_body: u64,
        warnings: &mut Vec<String>,
    ) -> ServerConfig {
        let mut section = root.section("server", "server");
        let usual = ServerConfig::default();
        let server = ServerConfig {
            max_connections: section.count("max_connections").unwrap_or(usual.max_connections),
            max_streams: section.count("max_streams").unwrap_or(usual.max_streams),
            max_resets: section.count("max_resets").unwrap_or(usual.max_resets),
            max_guarded: section.count("max_guarded").unwrap_or(usual.max_guarded),
            max_guarded_per_connection: section
                .count("max_guarded_per_connection")
                .unwrap_or(usual.max_guarded_per_connection),
            max_passed: section.count("max_passed").unwrap_or(usual.max_passed),
            max_upstream_connections: section
                .count("max_upstream_connections")
                .unwrap_or(usual.max_upstream_connections),
            max_buffered_bytes: section.size("max_buffered_bytes").unwrap_or(usual.max_buffered_bytes),
            max_reply_bytes: section.size("max_reply_bytes").unwrap_or(usual.max_reply_bytes),
            header_timeout: section.positive("header_timeout").unwrap_or(usual.header_timeout),
            idle_timeout: section.positive("idle_timeout").unwrap_or(usual.idle_timeout),
            body_timeout: section.positive("body_timeout").unwrap_or(usual.body_timeout),
            stall_timeout: section.positive("stall_timeout").unwrap_or(usual.stall_timeout),
            drain_for: section.positive("drain_for").unwrap_or(usual.drain_for),
        };
        let line =
            |keys: &[&str]| keys.iter().filter_map(|key| section.line_of(key)).max().unwrap_or(section.line);
        if server.max_reply_bytes > server.max_buffered_bytes {
            reader.refuse_with_hint(
                line(&["max_reply_bytes", "max_buffered_bytes"]),
                "`max_reply_bytes` is larger than `max_buffered_bytes`, which counts replies too",
                "leave room for request bodies: half of `max_buffered_bytes` is usual",
            );
        }
        // The default is large enough for the largest body that a route may allow.
        if server.max_buffered_bytes < largest_body && section.line_of("max_buffered_bytes").is_some() {
            reader.refuse_with_hint(
                line(&["max_buffered_bytes"]),
                "`max_buffered_bytes` is smaller than `max_request_body`: the largest body would never be read",
                "give it room for many bodies at once",
            );
        }
        if server.max_guarded_per_connection < server.max_streams {
            reader.refuse_with_hint(
                line(&["max_guarded_per_connection", "max_streams"]),
                "`max_guarded_per_connection` is smaller than `max_streams`: offered streams would be refused",
                "twice `max_streams` leaves room for runs whose client has gone",
            );
        }
        if server.max_passed >= server.max_connections {
            warnings.push(format!(
                "{}: `max_passed` is not below `max_connections`: unguarded requests alone could hold every connection",
                reader.position(line(&["max_passed", "max_connections"]))
            ));
        }
        section.finish();
        server
    }
}
