//! A lexer for Rust source that keeps comments and line numbers.
//!
//! The checks need comments, which parsers drop, and only the outline of the code. So this is a lexer and not a
//! parser, and the crate compiles in a second without dependencies.

/// A piece of Rust source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// The class of the token.
    pub(crate) kind: Kind,
    /// Its text: without quotes for a string, without the marker for a comment.
    pub(crate) text: &'a str,
    /// Line of its first character, from 1.
    pub(crate) line: usize,
}

/// The class of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Ident,
    /// One character of punctuation.
    Punct,
    /// A string or byte string, raw or not.
    Str,
    /// A number, character or lifetime.
    Other,
    /// `// …` or `/* … */`.
    Comment,
    /// An outer doc comment, `/// …`.
    OuterDoc,
    /// An inner doc comment, `//! …`.
    InnerDoc,
}

impl Token<'_> {
    /// Returns whether the token is a comment of any kind.
    pub(crate) fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::Comment | Kind::OuterDoc | Kind::InnerDoc)
    }

    /// Returns whether the token is this identifier or punctuation.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Ident | Kind::Punct) && self.text == text
    }
}

/// Splits Rust source into tokens. Unterminated strings and comments end with the text.
pub(crate) fn lex(text: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { text, at: 0, line: 1, tokens: Vec::new() };
    while lexer.at < text.len() {
        lexer.step();
    }
    lexer.tokens
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<Token<'a>>,
}

impl<'a> Lexer<'a> {
    fn step(&mut self) {
        let rest = &self.text[self.at..];
        let first = rest.chars().next().unwrap_or(' ');
        if first.is_whitespace() {
            self.advance(first.len_utf8());
        } else if rest.starts_with("//") {
            self.line_comment(rest);
        } else if rest.starts_with("/*") {
            self.block_comment(rest);
        } else if let Some((open, hashes)) = string_start(rest) {
            self.string(rest, open, hashes);
        } else if first == '\'' || rest.starts_with("b'") {
            self.quote(rest);
        } else if first.is_alphabetic() || first == '_' {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.push(Kind::Ident, &rest[..len], len);
        } else if first.is_ascii_digit() {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.push(Kind::Other, &rest[..len], len);
        } else {
            let len = first.len_utf8();
            self.push(Kind::Punct, &rest[..len], len);
        }
    }

    fn line_comment(&mut self, rest: &'a str) {
        let len = rest.find('\n').unwrap_or(rest.len());
        let line = &rest[..len];
        let (kind, marker) = match line.as_bytes().get(2) {
            Some(b'!') => (Kind::InnerDoc, 3),
            Some(b'/') if !line.starts_with("////") => (Kind::OuterDoc, 3),
            _ => (Kind::Comment, 2),
        };
        self.push(kind, &line[marker..], len);
    }

    fn block_comment(&mut self, rest: &'a str) {
        let (mut depth, mut len) = (0, 0);
        while len < rest.len() {
            if rest[len..].starts_with("/*") {
                (depth, len) = (depth + 1, len + 2);
            } else if rest[len..].starts_with("*/") {
                (depth, len) = (depth - 1, len + 2);
                if depth == 0 {
                    break;
                }
            } else {
                len += rest[len..].chars().next().map_or(1, char::len_utf8);
            }
        }
        self.push(Kind::Comment, rest[2..len].trim_end_matches("*/"), len);
    }

    fn string(&mut self, rest: &'a str, open: usize, hashes: Option<usize>) {
        let body = &rest[open..];
        let len = match hashes {
            Some(hashes) => body.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(body.len()),
            None => closing_quote(body),
        };
        let close = 1 + hashes.unwrap_or(0);
        self.push(Kind::Str, &body[..len], (open + len + close).min(rest.len()));
    }

    /// Takes a character or a lifetime.
    fn quote(&mut self, rest: &'a str) {
        let open = if rest.starts_with('b') { 2 } else { 1 };
        let body = &rest[open..];
        let mut chars = body.char_indices();
        let len = match (chars.next(), chars.next()) {
            // An escape: the quote after the escaped character closes it.
            (Some((_, '\\')), Some((at, escaped))) => {
                let after = at + escaped.len_utf8();
                open + after + body[after..].find('\'').map_or(0, |end| end + 1)
            }
            (_, Some((at, '\''))) => open + at + 1,
            _ => open + body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len()),
        };
        self.push(Kind::Other, &rest[..len], len);
    }

    fn push(&mut self, kind: Kind, text: &'a str, len: usize) {
        self.tokens.push(Token { kind, text, line: self.line });
        self.advance(len);
    }

    fn advance(&mut self, len: usize) {
        self.line += self.text[self.at..self.at + len].matches('\n').count();
        self.at += len;
    }
}

/// Returns the length of a string's opening, and its number of hashes if it is raw.
fn string_start(rest: &str) -> Option<(usize, Option<usize>)> {
    let prefix = rest.find(|c: char| !matches!(c, 'b' | 'r' | 'c')).unwrap_or(rest.len());
    if prefix > 2 {
        return None;
    }
    let is_raw = rest[..prefix].contains('r');
    let hashes = rest[prefix..].bytes().take_while(|byte| *byte == b'#').count();
    if hashes > 0 && !is_raw {
        return None;
    }
    let open = prefix + hashes;
    rest[open..].starts_with('"').then_some((open + 1, is_raw.then_some(hashes)))
}

fn closing_quote(body: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        lex(text).iter().map(|token| (token.kind, token.text)).collect()
    }

    #[test]
    fn comments_and_strings_are_told_from_code() {
        assert_eq!(
            kinds("//! a\n/// b\n// c\nx\"d // e\"/* f /* g */ */"),
            [
                (Kind::InnerDoc, " a"),
                (Kind::OuterDoc, " b"),
                (Kind::Comment, " c"),
                (Kind::Ident, "x"),
                (Kind::Str, "d // e"),
                (Kind::Comment, " f /* g */ "),
            ]
        );
    }

    #[test]
    fn raw_strings_end_with_as_many_hashes() {
        assert_eq!(
            kinds("r#\"a\"b\"# br\"c\" \"d\\\"e\" rest"),
            [(Kind::Str, "a\"b"), (Kind::Str, "c"), (Kind::Str, "d\\\"e"), (Kind::Ident, "rest"),]
        );
    }

    #[test]
    fn lifetimes_do_not_open_a_character() {
        assert_eq!(
            kinds("&'a str '\"' '\\'' b'x' '\\u{1F}'"),
            [
                (Kind::Punct, "&"),
                (Kind::Other, "'a"),
                (Kind::Ident, "str"),
                (Kind::Other, "'\"'"),
                (Kind::Other, "'\\''"),
                (Kind::Other, "b'x'"),
                (Kind::Other, "'\\u{1F}'"),
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_strings() {
        let lines: Vec<usize> = lex("a\n\"b\nc\"\nd").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 4]);
    }
}
