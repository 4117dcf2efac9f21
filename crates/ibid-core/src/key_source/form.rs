//! Finds the key as a field of a form, urlencoded or multipart.

use crate::fingerprint::{media, multipart};
use crate::key::KeyError;

/// Returns the value of the field `name` in an `application/x-www-form-urlencoded` body.
pub(super) fn find_urlencoded(body: &[u8], name: &str) -> Result<Option<String>, KeyError> {
    let mut text = None;
    for pair in body.split(|&byte| byte == b'&') {
        let equals = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        if !decodes_to(&pair[..equals], name) {
            continue;
        }
        if text.is_some() {
            return Err(KeyError::Repeated);
        }
        let value = pair.get(equals + 1..).unwrap_or_default();
        text = Some(decode(value).ok_or(KeyError::Syntax)?);
    }
    Ok(text)
}

/// Returns the content of the part `name` in a `multipart/form-data` body.
pub(super) fn find_multipart(boundary: &[u8], body: &[u8], name: &str) -> Result<Option<String>, KeyError> {
    let parts = multipart::read(boundary, body).ok_or(KeyError::Unsearchable)?;
    let mut text = None;
    for part in parts {
        let field = PartName::of(&part).ok_or(KeyError::Unsearchable)?;
        if field.name != name.as_bytes() {
            continue;
        }
        if text.is_some() {
            return Err(KeyError::Repeated);
        }
        if field.is_file || is_coded(&part) {
            return Err(KeyError::NotText);
        }
        text = Some(String::from_utf8(part.content.to_vec()).map_err(|_| KeyError::Syntax)?);
    }
    Ok(text)
}

/// The name in the `Content-Disposition` of a part.
struct PartName {
    name: Vec<u8>,
    is_file: bool,
}

impl PartName {
    /// Reads the name of a part. Returns `None` unless there is one such field, of type `form-data`, with one plain
    /// name. Servers differ on the rest.
    fn of(part: &multipart::FormPart<'_>) -> Option<PartName> {
        let mut dispositions = part.fields.iter().filter(|(name, _)| name == b"content-disposition");
        let (_, line) = dispositions.next()?;
        if dispositions.next().is_some() {
            return None;
        }
        let end = line.iter().position(|&byte| byte == b';')?;
        if !line[..end].trim_ascii().eq_ignore_ascii_case(b"form-data") {
            return None;
        }
        let parameters = media::read_parameters(&line[end..])?;
        let mut names = parameters.iter().filter(|(name, _)| name == b"name" || name == b"name*");
        let (kind, name) = names.next()?;
        if kind == b"name*" || names.next().is_some() {
            return None;
        }
        let is_file = parameters.iter().any(|(name, _)| name.starts_with(b"filename"));
        Some(PartName { name: name.clone(), is_file })
    }
}

fn is_coded(part: &multipart::FormPart<'_>) -> bool {
    let plain = |value: &[u8]| PLAIN_ENCODINGS.iter().any(|known| value.eq_ignore_ascii_case(known));
    part.fields.iter().any(|(name, value)| name == b"content-transfer-encoding" && !plain(value))
}

/// Returns whether an encoded name decodes to `name`. An invalid escape is taken literally, as browsers and servers
/// read it.
fn decodes_to(encoded: &[u8], name: &str) -> bool {
    match decode(encoded) {
        Some(decoded) => decoded == name,
        None => encoded == name.as_bytes(),
    }
}

/// Decodes `+` to a space and `%XX` to a byte; `None` for a broken escape or bytes that are not UTF-8.
fn decode(encoded: &[u8]) -> Option<String> {
    let mut bytes = encoded.iter();
    let mut decoded = Vec::with_capacity(encoded.len());
    while let Some(&byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

/// Encodings of a part that leave its bytes as they are.
const PLAIN_ENCODINGS: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
