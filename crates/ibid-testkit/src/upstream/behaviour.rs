//! The directives of `x-fixture`, parsed.

use std::time::Duration;

use crate::client::{Fields, fields};

/// The parsed directives of the table in [`crate::upstream`].
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) headers: Fields,
    pub(super) framing: Frame,
    pub(super) cut: Option<Cut>,
    pub(super) rst: bool,
    pub(super) gated: bool,
    pub(super) delay: Duration,
    pub(super) upgrade: bool,
    pub(super) garbage: bool,
    pub(super) pause: Duration,
    pub(super) once: bool,
    /// A directive that only the HTTP/2 server knows.
    pub(crate) h2: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Given(Vec<u8>),
    Echo,
    Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Length,
    Chunked { trailers: bool },
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Unread,
    Read,
    Head,
    Body,
    Chunk,
    After,
    Next,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            status: 200,
            body: Body::Given(b"done".to_vec()),
            headers: Vec::new(),
            framing: Frame::Length,
            cut: None,
            rst: false,
            gated: false,
            delay: Duration::ZERO,
            upgrade: false,
            garbage: false,
            pause: Duration::ZERO,
            once: false,
            h2: None,
        }
    }
}

impl Behaviour {
    pub(crate) fn parse(directives: &str) -> Result<Behaviour, String> {
        let mut it = Behaviour::default();
        for directive in directives.split(';').map(str::trim).filter(|d| !d.is_empty()) {
            it.take(directive).ok_or_else(|| format!("unknown x-fixture directive `{directive}`"))?;
        }
        Ok(it)
    }

    fn take(&mut self, directive: &str) -> Option<()> {
        let (word, value) = directive.split_once('=').unwrap_or((directive, ""));
        match word {
            "status" => self.status = value.parse().ok()?,
            "body" => self.body = Body::Given(value.as_bytes().to_vec()),
            "bytes" => self.body = Body::Given(vec![b'x'; value.parse().ok()?]),
            "echo" => self.body = Body::Echo,
            "events" => self.body = Body::Events,
            "header" => self.headers.extend(fields(value.as_bytes())),
            "retry-after" => self.headers.push((b"Retry-After".to_vec(), value.as_bytes().to_vec())),
            "odd" => self.headers.extend(odd_headers()),
            "chunked" => self.framing = Frame::Chunked { trailers: false },
            "trailers" => self.framing = Frame::Chunked { trailers: true },
            "until-close" => self.framing = Frame::UntilClose,
            "upgrade" => (self.status, self.upgrade) = (101, true),
            "gate" => self.gated = true,
            "delay" => self.delay = Duration::from_millis(value.parse().ok()?),
            "rst" => self.rst = true,
            "garbage" => self.garbage = true,
            "pause" => self.pause = Duration::from_millis(value.parse().ok()?),
            "once" => self.once = true,
            "cut" => self.cut = Some(Cut::parse(value)?),
            "refuse" | "goaway" | "reset" => self.h2 = Some(directive.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

impl Cut {
    fn parse(word: &str) -> Option<Cut> {
        Some(match word {
            "unread" => Cut::Unread,
            "read" => Cut::Read,
            "head" => Cut::Head,
            "body" => Cut::Body,
            "chunk" => Cut::Chunk,
            "after" => Cut::After,
            "next" => Cut::Next,
            _ => return None,
        })
    }
}

/// Returns fields that a gateway gets wrong: see `odd` in the table of [`crate::upstream`].
fn odd_headers() -> Fields {
    let lines: [(&str, &[u8]); 13] = [
        ("Link", b"</a>; rel=\"next\""),
        ("Link", b"</b>; rel=\"prev\""),
        ("X-Bytes", b"caf\xe9"),
        ("Content-Disposition", b"attachment; filename=\"a,b.txt\""),
        ("Connection", b"x-a, keep-alive"),
        ("X-A", b"for this connection only"),
        ("Keep-Alive", b"timeout=5"),
        ("Proxy-Connection", b"keep-alive"),
        ("Proxy-Authenticate", b"Basic"),
        ("Upgrade", b"h2c"),
        ("Set-Cookie", b"a=1; Path=/"),
        ("Set-Cookie", b"b=2; Expires=Wed, 09 Jun 2027 10:18:14 GMT"),
        ("X-Empty", b""),
    ];
    lines.map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).to_vec()
}
