//! JSON pointers (RFC 6901), by which a recipe names parts of a body.

use std::fmt;

use jiter::{Jiter, JiterError, Peek};
use minicbor::{Decode, Decoder, Encode, Encoder};

/// A JSON pointer. `""` is the whole document, `/a/0` the first element of member `a`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// Reason why a text is not a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The text is neither empty nor begins with a slash.
    #[error("a JSON pointer begins with `/`, this one does not: `{0}`")]
    NoSlash(String),
    /// The text has an escape other than `~0` and `~1`.
    #[error("a `~` in a JSON pointer is followed by `0` or `1`, not so in `{0}`")]
    Escape(String),
}

impl Pointer {
    /// Parses a pointer in its string form (RFC 6901, section 3), not the URI fragment form.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is neither empty nor begins with `/`, or has another escape than `~0` and `~1`.
    pub fn parse(text: &str) -> Result<Pointer, PointerError> {
        let mut tokens = text.split('/');
        if tokens.next() != Some("") {
            return Err(PointerError::NoSlash(text.to_owned()));
        }
        let tokens = tokens.map(|token| unescape(token).ok_or_else(|| PointerError::Escape(text.to_owned())));
        Ok(Pointer { tokens: tokens.collect::<Result<_, _>>()?, text: text.to_owned() })
    }

    /// Returns the pointer to the whole document.
    pub fn whole() -> Pointer {
        Pointer { text: String::new(), tokens: Vec::new() }
    }

    /// Returns the pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the part of a JSON text that the pointer names, unchanged. `None` if there is no such part, or if the
    /// text is not JSON before it.
    ///
    /// Of two members of one name the first counts.
    pub fn find<'j>(&self, json: &'j [u8]) -> Option<&'j [u8]> {
        self.walk(json).ok().flatten()
    }

    fn walk<'j>(&self, json: &'j [u8]) -> Result<Option<&'j [u8]>, JiterError> {
        let mut json = Jiter::new(json);
        let mut peek = json.peek()?;
        for token in &self.tokens {
            let inside = match peek {
                Peek::Object => member(&mut json, token)?,
                Peek::Array => element(&mut json, token)?,
                _ => None,
            };
            match inside {
                Some(next) => peek = next,
                None => return Ok(None),
            }
        }
        let start = json.current_index();
        json.known_skip(peek)?;
        Ok(Some(json.slice_to_current(start)))
    }

    /// Returns the reference tokens, unescaped.
    pub(crate) fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

/// Advances to the member of this name.
fn member(json: &mut Jiter<'_>, name: &str) -> Result<Option<Peek>, JiterError> {
    let mut is_match = json.known_object()?.map(|key| key == name);
    while let Some(matches) = is_match {
        let peek = json.peek()?;
        if matches {
            return Ok(Some(peek));
        }
        json.known_skip(peek)?;
        is_match = json.next_key()?.map(|key| key == name);
    }
    Ok(None)
}

/// Advances to the element of this index.
fn element(json: &mut Jiter<'_>, token: &str) -> Result<Option<Peek>, JiterError> {
    let (mut next, mut index) = (json.known_array()?, 0);
    while let Some(peek) = next {
        if token_is_index(token, index) {
            return Ok(Some(peek));
        }
        json.known_skip(peek)?;
        next = json.array_step()?;
        index += 1;
    }
    Ok(None)
}

/// Returns whether a token names the array element `index`: digits without a leading zero. `-` names the element after
/// the last, which can never be read.
pub(crate) fn token_is_index(token: &str, index: usize) -> bool {
    let plain = token == "0" || !token.starts_with(['0', '+']);
    plain && token.parse() == Ok(index)
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointer({:?})", self.text)
    }
}

impl<C> Encode<C> for Pointer {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _context: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.str(&self.text)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Pointer {
    fn decode(d: &mut Decoder<'b>, _context: &mut C) -> Result<Pointer, minicbor::decode::Error> {
        let at = d.position();
        Pointer::parse(d.str()?).map_err(|error| minicbor::decode::Error::custom(error).at(at))
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut text = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            char => char,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_read_as_rfc_6901_shows_them() {
        let tokens = |text: &str| Pointer::parse(text).unwrap().tokens().to_vec();
        assert_eq!(tokens(""), Vec::<String>::new());
        assert_eq!(tokens("/"), [""]);
        assert_eq!(tokens("/foo/0"), ["foo", "0"]);
        assert_eq!(tokens("/a~1b/m~0n/~01"), ["a/b", "m~n", "~1"]);
        assert_eq!(tokens("/ /c%d/e^f"), [" ", "c%d", "e^f"]);
    }

    #[test]
    fn a_part_is_returned_unchanged() {
        let json = br#" {"a": [ {"b" : 1.10}, "x\u0041", [], null ], "a/b": {"" : -0 }, "a": 2, "big": 12345678901234567890123 } "#;
        let find = |text: &str| {
            let part = Pointer::parse(text).unwrap().find(json);
            part.map(|part| String::from_utf8(part.to_vec()).unwrap())
        };
        for (pointer, part) in [
            ("/a/0", r#"{"b" : 1.10}"#),
            ("/a/0/b", "1.10"),
            ("/a/1", r#""x\u0041""#),
            ("/a/2", "[]"),
            ("/a/3", "null"),
            ("/a~1b/", "-0"),
            ("/big", "12345678901234567890123"),
        ] {
            assert_eq!(find(pointer).as_deref(), Some(part), "{pointer}");
        }
        assert_eq!(
            find("").map(|whole| whole.len()),
            Some(json.len() - 2),
            "the whole text, but for the space around"
        );
        for missing in ["/b", "/a/4", "/a/-", "/a/00", "/a/2/0", "/big/0", "/a/0/b/c", "/"] {
            assert_eq!(find(missing), None, "{missing}");
        }
        for broken in ["", "{", r#"{"a""#, r#"{"a":}"#, "nope"] {
            assert_eq!(Pointer::parse("/a").unwrap().find(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        assert_eq!(Pointer::parse("a"), Err(PointerError::NoSlash("a".into())));
        assert_eq!(Pointer::parse("#/a"), Err(PointerError::NoSlash("#/a".into())));
        for text in ["/~", "/~2", "/a/~b", "/~/0"] {
            assert_eq!(Pointer::parse(text), Err(PointerError::Escape(text.into())));
        }
    }

    #[test]
    fn an_index_has_no_sign_and_no_leading_zero() {
        assert!(token_is_index("0", 0) && token_is_index("10", 10));
        for token in ["", "00", "01", "+1", "-1", "-", "1.0", " 1", "99999999999999999999999"] {
            assert!(!(0..100).any(|index| token_is_index(token, index)), "{token}");
        }
    }
}
