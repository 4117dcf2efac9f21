//! Digests `multipart/form-data` by its parts: order, fields and bytes count, the boundary does not.
//!
//! The parser is strict where RFC 2046 is lenient. Servers differ on bare line feeds, padding, preambles and folded
//! lines. If two servers could split a body differently, it must not equal another one, so it counts by its bytes.

use super::frame::{Framer, Part};

/// Writes the parts of a form. Returns `false`, and writes nothing, if it cannot be read.
pub(super) fn write(frames: &mut Framer, boundary: &[u8], body: &[u8]) -> bool {
    let Some(parts) = read(boundary, body) else { return false };
    for part in parts {
        frames.part(Part::Multipart, b"");
        for (name, value) in part.fields {
            frames.part(Part::MultipartField, &name);
            frames.part(Part::MultipartValue, value);
        }
        frames.part(Part::MultipartContent, part.content);
    }
    // Ends the list; otherwise a form without parts would write no frame at all.
    frames.part(Part::Multipart, b"end");
    true
}

/// One part of a form.
pub(crate) struct FormPart<'b> {
    /// All fields of the part, by their names in lower case: the form field's name, the file's, the type.
    pub(crate) fields: Vec<(Vec<u8>, &'b [u8])>,
    pub(crate) content: &'b [u8],
}

/// Splits a body into its parts.
///
/// Each `--boundary` in it must be a delimiter, at the start of a line and with nothing else on it. One inside a
/// content would be a delimiter to some servers and data to others.
pub(crate) fn read<'b>(boundary: &[u8], body: &'b [u8]) -> Option<Vec<FormPart<'b>>> {
    if boundary.is_empty() || boundary.len() > BOUNDARY_LEN_MAX || boundary.ends_with(b" ") {
        return None;
    }
    let dashed = [b"--", boundary].concat();
    let mut parts = Vec::new();
    let mut rest = body.strip_prefix(&dashed[..])?;
    loop {
        if let Some(after) = rest.strip_prefix(b"--") {
            return matches!(after, b"" | b"\r\n").then_some(parts);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let delimiter = find(rest, &dashed)?;
        parts.push(read_part(rest[..delimiter].strip_suffix(b"\r\n")?)?);
        rest = &rest[delimiter + dashed.len()..];
    }
}

fn read_part(part: &[u8]) -> Option<FormPart<'_>> {
    let head_to = find(part, b"\r\n\r\n")?;
    let mut fields = Vec::new();
    let mut head = &part[..head_to];
    loop {
        let line_to = find(head, b"\r\n").unwrap_or(head.len());
        let line = &head[..line_to];
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = line[..colon].to_ascii_lowercase();
        // This also rejects a folded line, which begins with a space, and a bare line feed before the colon.
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) || line.contains(&b'\n') {
            return None;
        }
        fields.push((name, line[colon + 1..].trim_ascii()));
        match head.get(line_to + 2..) {
            Some(next) => head = next,
            None => return Some(FormPart { fields, content: &part[head_to + 4..] }),
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let (first, _) = what.split_first()?;
    // The first byte alone decides at nearly every offset, and a file of megabytes has many.
    bytes.windows(what.len()).position(|window| window[0] == *first && window == what)
}

/// Longest boundary that RFC 2046 allows.
const BOUNDARY_LEN_MAX: usize = 70;
