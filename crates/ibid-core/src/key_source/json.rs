//! The key as a string in a JSON body.

use jiter::{Jiter, JiterError, Peek};

use crate::fingerprint::pointer::token_is_index;
use crate::key::KeyError;

/// Returns the string at `tokens`, or `None` if there is no such member.
///
/// The body is read to its end, also after the member was found. A second member of the same name anywhere on the
/// way is [`KeyError::Repeated`]: receivers differ on which of the two counts.
pub(super) fn find(body: &[u8], tokens: &[String]) -> Result<Option<String>, KeyError> {
    // The tokenizer skips strings without decoding them.
    std::str::from_utf8(body).map_err(|_| KeyError::Unsearchable)?;
    let mut json = Jiter::new(body);
    let peek = json.peek().map_err(malformed)?;
    let found = find_in(&mut json, peek, tokens)?;
    json.finish().map_err(malformed)?;
    Ok(found)
}

/// Reads the value that begins at `peek` to its end. Recursion is as deep as the configured pointer is long.
fn find_in(json: &mut Jiter<'_>, peek: Peek, tokens: &[String]) -> Result<Option<String>, KeyError> {
    let Some((token, deeper)) = tokens.split_first() else {
        return match peek {
            Peek::String => json.known_str().map(|text| Some(text.to_owned())).map_err(malformed),
            _ => Err(KeyError::NotText),
        };
    };
    match peek {
        Peek::Object => in_object(json, token, deeper),
        Peek::Array => in_array(json, token, deeper),
        _ => json.known_skip(peek).map(|()| None).map_err(malformed),
    }
}

fn in_object(json: &mut Jiter<'_>, name: &str, deeper: &[String]) -> Result<Option<String>, KeyError> {
    let (mut found, mut seen) = (None, false);
    let mut is_it = json.known_object().map_err(malformed)?.map(|key| key == name);
    while let Some(matches) = is_it {
        let peek = json.peek().map_err(malformed)?;
        if matches {
            if seen {
                return Err(KeyError::Repeated);
            }
            seen = true;
            found = find_in(json, peek, deeper)?;
        } else {
            json.known_skip(peek).map_err(malformed)?;
        }
        is_it = json.next_key().map_err(malformed)?.map(|key| key == name);
    }
    Ok(found)
}

fn in_array(json: &mut Jiter<'_>, token: &str, deeper: &[String]) -> Result<Option<String>, KeyError> {
    let (mut found, mut index) = (None, 0);
    let mut next = json.known_array().map_err(malformed)?;
    while let Some(peek) = next {
        if token_is_index(token, index) {
            found = find_in(json, peek, deeper)?;
        } else {
            json.known_skip(peek).map_err(malformed)?;
        }
        next = json.array_step().map_err(malformed)?;
        index += 1;
    }
    Ok(found)
}

fn malformed(_: JiterError) -> KeyError {
    KeyError::Unsearchable
}
