//! Finds the key as a string in a JSON body.

use jiter::{Jiter, JiterError, Peek};

use crate::fingerprint::pointer::token_is_index;
use crate::key::KeyError;

/// Returns the string at `tokens`, or `None` if there is no such member.
///
/// The body is read to its end, even after the member was found. A second member of the same name anywhere on the path
/// is [`KeyError::Repeated`]: receivers differ on which of the two counts.
pub(super) fn find(body: &[u8], tokens: &[String]) -> Result<Option<String>, KeyError> {
    // The tokenizer skips strings without decoding them.
    std::str::from_utf8(body).map_err(|_| KeyError::Unsearchable)?;
    let mut json = Jiter::new(body);
    let peek = json.peek().map_err(to_unsearchable)?;
    let value = find_in(&mut json, peek, tokens)?;
    json.finish().map_err(to_unsearchable)?;
    Ok(value)
}

/// Reads the value that begins at `peek` to its end. The recursion is as deep as the configured pointer is long.
fn find_in(json: &mut Jiter<'_>, peek: Peek, tokens: &[String]) -> Result<Option<String>, KeyError> {
    let Some((token, deeper)) = tokens.split_first() else {
        return match peek {
            Peek::String => json.known_str().map(|text| Some(text.to_owned())).map_err(to_unsearchable),
            _ => Err(KeyError::NotText),
        };
    };
    match peek {
        Peek::Object => in_object(json, token, deeper),
        Peek::Array => in_array(json, token, deeper),
        _ => json.known_skip(peek).map(|()| None).map_err(to_unsearchable),
    }
}

fn in_object(json: &mut Jiter<'_>, name: &str, deeper: &[String]) -> Result<Option<String>, KeyError> {
    let (mut value, mut seen) = (None, false);
    let mut is_match = json.known_object().map_err(to_unsearchable)?.map(|key| key == name);
    while let Some(matches) = is_match {
        let peek = json.peek().map_err(to_unsearchable)?;
        if matches {
            if seen {
                return Err(KeyError::Repeated);
            }
            seen = true;
            value = find_in(json, peek, deeper)?;
        } else {
            json.known_skip(peek).map_err(to_unsearchable)?;
        }
        is_match = json.next_key().map_err(to_unsearchable)?.map(|key| key == name);
    }
    Ok(value)
}

fn in_array(json: &mut Jiter<'_>, token: &str, deeper: &[String]) -> Result<Option<String>, KeyError> {
    let (mut value, mut index) = (None, 0);
    let mut next = json.known_array().map_err(to_unsearchable)?;
    while let Some(peek) = next {
        if token_is_index(token, index) {
            value = find_in(json, peek, deeper)?;
        } else {
            json.known_skip(peek).map_err(to_unsearchable)?;
        }
        next = json.array_step().map_err(to_unsearchable)?;
        index += 1;
    }
    Ok(value)
}

fn to_unsearchable(_: JiterError) -> KeyError {
    KeyError::Unsearchable
}
