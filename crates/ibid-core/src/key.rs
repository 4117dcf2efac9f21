//! The idempotency key as a client sends it in a header field.
//!
//! This module knows field lines and RFC 9651 strings, not the field's name, tenants or scopes. A [`Key`] exists only
//! if it was parsed here, so no other code checks its length or its characters again.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;

use sfv::visitor::{Ignored, ItemVisitor, ParameterVisitor};
use sfv::{BareItemFromInput, Parser};

/// A decoded key: 1 to [`Key::LEN_MAX`] characters of printable ASCII, compared byte for byte.
///
/// `Debug` does not show it. A caller who knows a key can ask for the stored response, so keys stay out of logs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

/// Accepted spellings of a key in its field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyForm {
    /// `"abc"` and `abc` name the same key: the draft wants the first, most clients send the second.
    #[default]
    QuotedOrBare,
    /// Only an RFC 9651 String is accepted.
    QuotedOnly,
}

/// Reason why a field names no key. No variant carries the value, so that no message can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is more than one field line.
    #[error("the key is given more than once")]
    Repeated,
    /// The key is well-formed but empty.
    #[error("the key is empty")]
    Empty,
    /// The key has more than [`Key::LEN_MAX`] characters.
    #[error("the key is longer than {max} characters", max = Key::LEN_MAX)]
    TooLong,
    /// The value is neither an RFC 9651 String nor, where that is allowed, a bare key.
    #[error("the key is malformed")]
    Syntax,
    /// The member of the body that should carry the key is not a string.
    #[error("the key in the body is not a string")]
    NotText,
    /// The body may carry the key and cannot be searched: it has a content coding, is malformed, or is of another media
    /// type.
    #[error("the body that may carry the key can't be searched")]
    Unsearchable,
}

impl Key {
    /// Longest accepted key. Clients send UUIDs (36); 255 leaves room and still fits every index.
    pub const LEN_MAX: usize = 255;

    /// Returns the key in the field lines of a header section; `None` if there is no line.
    ///
    /// RFC 9651 joins lines with commas, and an Item has no comma outside its quotes. A string that a line break splits
    /// in two could still parse after joining, so two lines are refused before they are joined, identical or not.
    ///
    /// # Errors
    ///
    /// Returns an error if there is more than one line, or if the line is no key in this form.
    pub fn from_lines<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
        form: KeyForm,
    ) -> Result<Option<Key>, KeyError> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        Key::parse(line, form).map(Some)
    }

    /// Parses the key in one field line.
    ///
    /// # Errors
    ///
    /// Returns an error if the line is no key in this form.
    pub fn parse(line: &[u8], form: KeyForm) -> Result<Key, KeyError> {
        // RFC 9651 strips spaces, not tabs: a tab is part of the value and an error there.
        let value = strip_spaces(line);
        match value.first() {
            None => Err(KeyError::Empty),
            // A value that begins with a quote is never read as bare: `"abc` is a broken String, not a key of four
            // characters. Otherwise one byte lost on the way would silently make a second key.
            Some(b'"') => parse_quoted(value),
            Some(_) if form == KeyForm::QuotedOrBare => parse_bare(value),
            Some(_) => Err(KeyError::Syntax),
        }
    }

    /// Reads a stored key from its decoded text ([`Key::as_str`]).
    ///
    /// # Errors
    ///
    /// Returns an error if the text is empty, too long, or has a character that a key cannot have.
    pub fn stored(text: &str) -> Result<Key, KeyError> {
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(KeyError::Syntax);
        }
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=Key::LEN_MAX => Ok(Key(text.into())),
            _ => Err(KeyError::TooLong),
        }
    }

    /// Returns one key for all spellings of a UUID, whose hex digits have no case. Other keys stay as they are.
    pub fn with_uuid_case_folded(self) -> Key {
        let is_uuid = self.0.len() == 36
            && self.0.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            });
        if is_uuid { Key(self.0.to_ascii_lowercase().into()) } else { self }
    }

    /// Returns the placeholder for a key that is no longer stored. Nothing that a client sends parses to it.
    pub(crate) fn forgotten() -> Key {
        Key("".into())
    }

    /// Returns the decoded text: no quotes, no escapes, no parameters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} characters)", self.0.len())
    }
}

fn strip_spaces(mut value: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
        value = rest;
    }
    value
}

/// Parses an RFC 9651 Item that is a String. Its parameters are legal and do not affect the key.
fn parse_quoted(value: &[u8]) -> Result<Key, KeyError> {
    let mut text = None;
    Parser::new(value).parse_item_with_visitor(StringItem(&mut text)).map_err(|_syntax| KeyError::Syntax)?;
    // RFC 9651 requires that at least 1024 characters can be parsed, so the length is checked after the syntax.
    Key::stored(&text.ok_or(KeyError::Syntax)?)
}

/// Parses an opaque key as most payment APIs document it.
///
/// A comma or semicolon could separate list members or parameters, and a quote or backslash could belong to a broken
/// String; UUIDs and prefixed tokens need none of them.
fn parse_bare(value: &[u8]) -> Result<Key, KeyError> {
    let is_opaque = |byte: &u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'\\' | b',' | b';');
    if !value.iter().all(is_opaque) {
        return Err(KeyError::Syntax);
    }
    // The value is all visible ASCII here, so it is UTF-8.
    Key::stored(std::str::from_utf8(value).map_err(|_utf8| KeyError::Syntax)?)
}

/// Visitor that takes the bare item of an Item if it is a String, and ignores the rest.
struct StringItem<'t, 'de>(&'t mut Option<Cow<'de, str>>);

impl<'de> ItemVisitor<'de> for StringItem<'_, 'de> {
    type Out = ();
    type Error = Infallible;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, Infallible> {
        if let BareItemFromInput::String(text) = item {
            *self.0 = Some(match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_str()),
                Cow::Owned(text) => Cow::Owned(text.into()),
            });
        }
        Ok(Ignored)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(line: &str) -> Result<String, KeyError> {
        Key::parse(line.as_bytes(), KeyForm::QuotedOrBare).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn quoted_and_bare_forms_name_one_key() {
        assert_eq!(read("abc"), read("\"abc\""));
        assert_eq!(read("  abc "), Ok("abc".into()));
        assert_eq!(read(" \"abc\"  "), Ok("abc".into()));
    }

    #[test]
    fn escapes_are_removed_and_case_is_kept() {
        assert_eq!(read(r#""a\"b""#), Ok("a\"b".into()));
        assert_eq!(read(r#""a\\b""#), Ok("a\\b".into()));
        assert_ne!(read("\"A\""), read("\"a\""));
    }

    #[test]
    fn parameters_are_legal_and_no_part_of_the_key() {
        assert_eq!(read("\"k\";v=2;w"), read("\"k\""));
        assert_eq!(read("k;v=2"), Err(KeyError::Syntax));
    }

    #[test]
    fn a_value_with_a_leading_quote_is_never_bare() {
        for line in ["\"abc", "\"abc\"d", "\"a\"b\"", "\"", "\"a\\n\"", " \"abc"] {
            assert_eq!(read(line), Err(KeyError::Syntax), "{line}");
        }
    }

    #[test]
    fn a_blank_key_is_empty_in_either_form() {
        for line in ["", "   ", "\"\"", " \"\" ", "\"\";v=1"] {
            assert_eq!(read(line), Err(KeyError::Empty), "{line:?}");
        }
        assert_eq!(Key::parse(b"", KeyForm::QuotedOnly), Err(KeyError::Empty));
        assert_eq!(read("\"   \""), Ok("   ".into()));
    }

    #[test]
    fn length_is_judged_after_syntax() {
        let of = |len: usize| "k".repeat(len);
        for len in [Key::LEN_MAX + 1, 1024, 64 * 1024] {
            assert_eq!(read(&of(len)), Err(KeyError::TooLong));
            assert_eq!(read(&format!("\"{}\"", of(len))), Err(KeyError::TooLong));
            assert_eq!(read(&format!("\"{}", of(len))), Err(KeyError::Syntax));
        }
        assert_eq!(read(&of(Key::LEN_MAX)), Ok(of(Key::LEN_MAX)));
        assert_eq!(read(&format!("\"{}\"", of(Key::LEN_MAX))), Ok(of(Key::LEN_MAX)));
        // Escapes do not count: the limit is on the decoded text.
        assert_eq!(read(&format!("\"{}\"", r"\\".repeat(Key::LEN_MAX))), Ok("\\".repeat(Key::LEN_MAX)));
    }

    #[test]
    fn a_bare_key_has_no_seams_and_no_invisible_bytes() {
        for line in ["a,b", "a;b", "a\"b", "a\\b", "a b", "a\tb", "\ta", "a\u{7f}", "füü", "a\nb", "a\0"] {
            assert_eq!(read(line), Err(KeyError::Syntax), "{line:?}");
        }
        assert_eq!(read("!#$%&'()*+-./:<=>?@[]^_`{|}~"), Ok("!#$%&'()*+-./:<=>?@[]^_`{|}~".into()));
    }

    #[test]
    fn a_uuid_may_begin_with_any_digit() {
        for first in "0123456789abcdef".chars() {
            let uuid = format!("{first}c9ae5ea-980f-4ebd-a027-04529942b95e");
            assert_eq!(read(&uuid), Ok(uuid.clone()));
        }
        assert_eq!(read("\"12345678901234567890\""), Ok("12345678901234567890".into()));
    }

    #[test]
    fn strict_form_takes_only_strings() {
        for line in ["abc", "1", "1.5", "?1", ":YWJj:", "@1659578233", "%\"abc\"", "(\"a\")", "\"a\", \"b\""]
        {
            assert_eq!(Key::parse(line.as_bytes(), KeyForm::QuotedOnly), Err(KeyError::Syntax), "{line}");
        }
    }

    #[test]
    fn two_lines_are_refused_even_when_they_agree() {
        let read = |lines: &[&'static str]| {
            Key::from_lines(lines.iter().map(|line| line.as_bytes()), KeyForm::QuotedOrBare)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["a"]).unwrap().unwrap().as_str(), "a");
        for lines in [["a", "a"], ["\"a\"", "\"b\""], ["\"foo", "bar\""], ["a", ""], ["", ""]] {
            assert_eq!(read(&lines), Err(KeyError::Repeated), "{lines:?}");
        }
    }

    #[test]
    fn neither_debug_nor_an_error_shows_the_key() {
        let key = Key::stored("hunter2").unwrap();
        assert_eq!(format!("{key:?}"), "Key(7 characters)");
        for error in [KeyError::Repeated, KeyError::Empty, KeyError::TooLong, KeyError::Syntax] {
            assert!(!error.to_string().is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_every_key_read_can_be_stored(line: Vec<u8>) {
            for form in [KeyForm::QuotedOrBare, KeyForm::QuotedOnly] {
                if let Ok(key) = Key::parse(&line, form) {
                    prop_assert_eq!(Key::stored(key.as_str()), Ok(key));
                }
            }
        }

        #[test]
        fn every_storable_text_has_a_quoted_form(text in "[ -~]{1,255}") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            let key = Key::parse(quoted.as_bytes(), KeyForm::QuotedOnly).unwrap();
            prop_assert_eq!(key.as_str(), &text);
            prop_assert_eq!(Key::stored(&text), Ok(key));
        }
    }
}
