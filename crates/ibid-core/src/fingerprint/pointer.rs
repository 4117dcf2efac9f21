//! JSON pointers (RFC 6901): which part of a body a recipe speaks of.

use std::fmt;

use minicbor::{Decode, Decoder, Encode, Encoder};

/// A JSON pointer. `""` is the whole document, `/a/0` the first element of member `a`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// Why a text is no JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// A pointer is empty or begins with a slash.
    #[error("a JSON pointer begins with `/`, this one does not: `{0}`")]
    NoSlash(String),
    /// Only `~0` and `~1` are escapes.
    #[error("a `~` in a JSON pointer is followed by `0` or `1`, not so in `{0}`")]
    Escape(String),
}

impl Pointer {
    /// Reads a pointer in its string form (RFC 6901, section 3), not the URI fragment form.
    pub fn parse(text: &str) -> Result<Pointer, PointerError> {
        let mut tokens = text.split('/');
        if tokens.next() != Some("") {
            return Err(PointerError::NoSlash(text.to_owned()));
        }
        let tokens = tokens.map(|token| unescape(token).ok_or_else(|| PointerError::Escape(text.to_owned())));
        Ok(Pointer { tokens: tokens.collect::<Result<_, _>>()?, text: text.to_owned() })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its reference tokens, unescaped.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

/// Whether a token names an array's element: digits without a leading zero. `-` names the element after the
/// last, which is never there to be read.
pub(super) fn token_is_index(token: &str, index: usize) -> bool {
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
    fn what_is_no_pointer_is_refused() {
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
