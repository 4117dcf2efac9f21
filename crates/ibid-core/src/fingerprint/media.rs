//! The media type of a request body: what counts of it, and how it allows the body to be read.
//!
//! Names and charsets are compared without case, because RFC 9110 says so; everything else of a parameter counts as
//! sent. Two content-type lines, or one that cannot be read, count as they are, and the body counts by its bytes.

use super::RequestView;
use super::frame::{Framer, Part};

/// A content-type field, parsed as far as possible.
pub(crate) enum Media {
    Absent,
    Read { essence: Vec<u8>, parameters: Vec<(Vec<u8>, Vec<u8>)> },
    Unreadable(Vec<Vec<u8>>),
}

impl Media {
    pub(crate) fn of(asked: &dyn RequestView) -> Media {
        let (mut count, mut media) = (0, Media::Absent);
        asked.header_lines("content-type", &mut |line| {
            count += 1;
            media = match read(line) {
                Some((essence, parameters)) if count == 1 => Media::Read { essence, parameters },
                _ => Media::Unreadable(Vec::new()),
            };
        });
        if let Media::Unreadable(lines) = &mut media {
            asked.header_lines("content-type", &mut |line| lines.push(line.to_vec()));
        }
        media
    }

    pub(super) fn write(&self, frames: &mut Framer) {
        match self {
            Media::Absent => frames.optional(Part::MediaType, None),
            Media::Read { essence, parameters } => {
                frames.part(Part::MediaType, essence);
                for (name, value) in parameters {
                    // A client picks a new boundary for every attempt, so the boundary does not count.
                    if !(self.is_form() && name == b"boundary") {
                        frames.part(Part::MediaParameter, name);
                        frames.part(Part::MediaValue, value);
                    }
                }
            }
            Media::Unreadable(lines) => {
                for line in lines {
                    frames.part(Part::MediaUnreadable, line);
                }
            }
        }
    }

    /// Returns whether this is `application/json` or any `+json` type. JSON is UTF-8 (RFC 8259), so another charset
    /// does not count as JSON.
    pub(crate) fn is_json(&self) -> bool {
        let Media::Read { essence, parameters } = self else { return false };
        let utf8 = |(name, value): &(Vec<u8>, Vec<u8>)| name != b"charset" || value == b"utf-8";
        (essence == b"application/json" || essence.ends_with(b"+json")) && parameters.iter().all(utf8)
    }

    /// Returns whether this is `application/x-amz-json-1.0` or a later version: JSON as AWS's own protocols name it.
    pub(crate) fn is_amz_json(&self) -> bool {
        matches!(self, Media::Read { essence, .. } if essence.starts_with(b"application/x-amz-json-"))
    }

    /// Returns whether this is a form as browsers send it by default.
    pub(crate) fn is_urlencoded(&self) -> bool {
        matches!(self, Media::Read { essence, .. } if essence == b"application/x-www-form-urlencoded")
    }

    /// Returns the boundary of a `multipart/form-data` body, if it names exactly one.
    pub(crate) fn form_boundary(&self) -> Option<&[u8]> {
        let Media::Read { parameters, .. } = self else { return None };
        let mut boundaries = parameters.iter().filter(|(name, _)| name == b"boundary");
        let (_, boundary) = boundaries.next().filter(|_| self.is_form())?;
        boundaries.next().is_none().then_some(boundary)
    }

    fn is_form(&self) -> bool {
        matches!(self, Media::Read { essence, .. } if essence == b"multipart/form-data")
    }
}

type Parameters = Vec<(Vec<u8>, Vec<u8>)>;

fn read(line: &[u8]) -> Option<(Vec<u8>, Parameters)> {
    // Shortcut for what nearly every request sends; the code below returns the same.
    if line == b"application/json" {
        return Some((line.to_vec(), Vec::new()));
    }
    let end = line.iter().position(|&byte| byte == b';').unwrap_or(line.len());
    let essence = line[..end].trim_ascii().to_ascii_lowercase();
    let slash = essence.iter().position(|&byte| byte == b'/')?;
    if !is_token(&essence[..slash]) || !is_token(&essence[slash + 1..]) {
        return None;
    }
    Some((essence, read_parameters(&line[end..])?))
}

pub(crate) fn read_parameters(mut rest: &[u8]) -> Option<Parameters> {
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let [b';', after @ ..] = rest else { break };
        rest = after.trim_ascii_start();
        // RFC 9110 allows an empty parameter: `text/plain;` and `text/plain; ;charset=utf-8`.
        if rest.is_empty() || rest[0] == b';' {
            continue;
        }
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let name = rest[..equals].to_ascii_lowercase();
        let (mut value, after) = read_value(&rest[equals + 1..])?;
        if !is_token(&name) {
            return None;
        }
        if name == b"charset" {
            value.make_ascii_lowercase();
        }
        parameters.push((name, value));
        rest = after;
    }
    rest.is_empty().then_some(parameters)
}

/// Reads a token, or a quoted string without its quotes. Returns it and the bytes after it.
fn read_value(rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let [b'"', quoted @ ..] = rest else {
        let end = rest.iter().position(|&byte| byte == b';' || byte.is_ascii_whitespace());
        let (value, after) = rest.split_at(end.unwrap_or(rest.len()));
        return is_token(value).then(|| (value.to_vec(), after));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &quoted[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

fn is_token(bytes: &[u8]) -> bool {
    let tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(tchar)
}
