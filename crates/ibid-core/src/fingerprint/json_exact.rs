//! `json-exact`: one text for all spellings of a JSON value, and never one text for two values.
//!
//! Members are in the order of RFC 8785, strings have its escapes, and numbers are written by their exact decimal value
//! (see `number`). It reads tokens, because a tree of values has already lost repeated names and digits. A body with
//! what RFC 7493 forbids (repeated names, lone surrogates, bad UTF-8) has no such text: the caller then uses the body's
//! bytes.

use std::cmp::Ordering;
use std::ops::Range;

use jiter::{Jiter, JiterError, Peek};

use super::number;
use super::pointer::{Pointer, token_is_index};

/// Returns the exact text of a JSON document.
///
/// # Errors
///
/// Returns an error if the body is not JSON, if an object has two members of one name, or if it is nested too deeply or
/// has a number out of range. A retry with the same body fails in the same way.
pub fn canonical(body: &[u8]) -> Result<Vec<u8>, NotExactError> {
    Ok(select(body, &[], &[])?.rest)
}

/// Reason why a body has no exact text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotExactError {
    /// The body is not a JSON document in UTF-8, or has a lone surrogate, or an integer with more digits than the
    /// tokenizer accepts (4300).
    #[error("the body is not JSON")]
    NotJson,
    /// An object has two members of one name, and receivers differ on which of them counts.
    #[error("an object in the body has two members of one name")]
    RepeatedName,
    /// The body is nested deeper than [`DEPTH_MAX`].
    #[error("the body is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// A number too large or too small for any arithmetic.
    #[error("a number in the body has an exponent out of range")]
    Exponent,
}

/// Deepest nesting of arrays and objects. serde_json and several other readers stop here, too, so a deeper body hardly
/// reaches a handler. It also bounds how often one byte is moved when nested objects are sorted.
pub const DEPTH_MAX: usize = 128;

/// A document split by pointers.
pub(super) struct Selection {
    /// The whole document, without the excluded values.
    pub(super) rest: Vec<u8>,
    /// The value of each included pointer, without the excluded values; `None` if it does not resolve.
    pub(super) included: Vec<Option<Vec<u8>>>,
}

/// Reads a document once, copies the included values and drops the excluded ones.
///
/// An excluded member is dropped with its name, so the result is the same as if it were absent; it still must be
/// well-formed.
pub(super) fn select(
    body: &[u8],
    include: &[Pointer],
    exclude: &[Pointer],
) -> Result<Selection, NotExactError> {
    let mut writer = Writer {
        // Almost never longer than the input: only numbers grow, by a few zeros.
        out: Vec::with_capacity(body.len() + 32),
        open: Vec::with_capacity(OPEN_AT_FIRST),
        members: Vec::with_capacity(MEMBERS_AT_FIRST),
        names: Vec::with_capacity(body.len().min(NAMES_AT_FIRST)),
        included: include.iter().map(|_| None).collect(),
        ..Writer::default()
    };
    writer.aim_at(include, exclude);
    let mut json = Jiter::new(body);
    let mut peek = json.peek()?;
    loop {
        let value = writer.begin_value(&mut json, peek)?;
        let next = match value {
            ValueStart::Complete => writer.end_values(&mut json)?,
            ValueStart::Inner(next) => Some(next),
        };
        match next {
            Some(next) => peek = next,
            None => break,
        }
    }
    json.finish()?;
    Ok(Selection { rest: writer.out, included: writer.included })
}

/// Result of reading the start of a value: it is complete, or the first value inside it comes next.
enum ValueStart {
    Complete,
    Inner(Peek),
}

/// The document as far as it has been read. It has an explicit stack instead of recursion, because the sender chooses
/// the depth.
#[derive(Default)]
struct Writer<'r> {
    out: Vec<u8>,
    open: Vec<Open>,
    /// Members of all open objects; each object owns the tail that begins at its `members_from`.
    members: Vec<Member>,
    /// Their names, decoded, end to end.
    names: Vec<u8>,
    /// Buffer for sorting an object's members.
    scratch: Vec<u8>,
    /// Pointers that may still resolve below the open containers, each by its remaining tokens.
    aims: Vec<Aim<'r>>,
    /// Pointers that name a value now being read.
    hits: Vec<Hit>,
    included: Vec<Option<Vec<u8>>>,
}

/// An array or object whose end has not been read yet.
struct Open {
    kind: Kind,
    /// Offset of the first byte after its bracket.
    inside_from: usize,
    /// Offset of the entry being read, including its comma and name.
    entry_from: usize,
    /// Offset of the value being read.
    value_from: usize,
    aims: Range<usize>,
}

enum Kind {
    Array { index: usize },
    Object { members_from: usize, names_from: usize, sorted: bool },
}

struct Member {
    name: Range<usize>,
    /// Name and value in `out`, without a comma; empty if excluded.
    text: Range<usize>,
}

#[derive(Clone, Copy)]
struct Aim<'r> {
    tokens: &'r [String],
    target: Target,
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    Include(usize),
    Exclude,
}

struct Hit {
    depth: usize,
    target: Target,
}

impl<'r> Writer<'r> {
    fn aim_at(&mut self, include: &'r [Pointer], exclude: &'r [Pointer]) {
        let excluded = exclude.iter().map(|pointer| (pointer, Target::Exclude));
        let included = include.iter().enumerate().map(|(at, pointer)| (pointer, Target::Include(at)));
        for (pointer, target) in excluded.chain(included) {
            match pointer.tokens() {
                [] => self.hits.push(Hit { depth: 0, target }),
                tokens => self.aims.push(Aim { tokens, target }),
            }
        }
        self.forget_inside_excluded(0, 0);
    }

    /// Writes a scalar, or opens a container up to its first value.
    fn begin_value(&mut self, json: &mut Jiter<'_>, peek: Peek) -> Result<ValueStart, NotExactError> {
        match peek {
            Peek::Object => {
                let members_from = self.members.len();
                let names_from = self.names.len();
                self.open(b'{', Kind::Object { members_from, names_from, sorted: true })?;
                match json.known_object()? {
                    Some(name) => self.begin_member(name),
                    None => return self.close(b'}').map(|()| ValueStart::Complete),
                }
                return Ok(ValueStart::Inner(json.peek()?));
            }
            Peek::Array => {
                self.open(b'[', Kind::Array { index: 0 })?;
                let Some(first) = json.known_array()? else {
                    return self.close(b']').map(|()| ValueStart::Complete);
                };
                self.begin_element();
                return Ok(ValueStart::Inner(first));
            }
            Peek::String => write_string(json.known_str()?, &mut self.out),
            Peek::Null => {
                json.known_null()?;
                self.out.extend_from_slice(b"null");
            }
            Peek::True | Peek::False => {
                let text: &[u8] = if json.known_bool(peek)? { b"true" } else { b"false" };
                self.out.extend_from_slice(text);
            }
            // A token that is not a number either is rejected by the grammar of numbers.
            _ => number::write(json.known_number_bytes(peek)?, &mut self.out)?,
        }
        Ok(ValueStart::Complete)
    }

    /// Closes every container that ends with the value just completed. Returns the next value, or `None` at the end of
    /// the document.
    fn end_values(&mut self, json: &mut Jiter<'_>) -> Result<Option<Peek>, NotExactError> {
        loop {
            self.end_entry();
            match self.open.last_mut().map(|open| &mut open.kind) {
                None => return Ok(None),
                Some(Kind::Array { index }) => {
                    *index += 1;
                    if let Some(next) = json.array_step()? {
                        self.begin_element();
                        return Ok(Some(next));
                    }
                    self.close(b']')?;
                }
                Some(Kind::Object { .. }) => {
                    if let Some(name) = json.next_key()? {
                        self.begin_member(name);
                        return Ok(Some(json.peek()?));
                    }
                    self.close(b'}')?;
                }
            }
        }
    }

    fn open(&mut self, bracket: u8, kind: Kind) -> Result<(), NotExactError> {
        if self.open.len() == DEPTH_MAX {
            return Err(NotExactError::TooDeep);
        }
        self.out.push(bracket);
        let at = self.out.len();
        let aims_from = self.open.last().map_or(0, |open| open.aims.end);
        let aims = aims_from..self.aims.len();
        self.open.push(Open { kind, inside_from: at, entry_from: at, value_from: at, aims });
        Ok(())
    }

    fn close(&mut self, bracket: u8) -> Result<(), NotExactError> {
        // Each container that `open` pushed is closed once.
        let Some(open) = self.open.pop() else { return Ok(()) };
        if let Kind::Object { members_from, names_from, sorted } = open.kind {
            if !sorted {
                self.sort_members(members_from, open.inside_from)?;
            }
            self.members.truncate(members_from);
            self.names.truncate(names_from);
        }
        self.out.push(bracket);
        Ok(())
    }

    fn begin_element(&mut self) {
        let Some(open) = self.open.last_mut() else { return };
        open.entry_from = self.out.len();
        if open.entry_from > open.inside_from {
            self.out.push(b',');
        }
        open.value_from = self.out.len();
        let Kind::Array { index } = open.kind else { return };
        self.follow(|token| token_is_index(token, index));
    }

    fn begin_member(&mut self, name: &str) {
        let Some(open) = self.open.last_mut() else { return };
        open.entry_from = self.out.len();
        if open.entry_from > open.inside_from {
            self.out.push(b',');
        }
        let text_from = self.out.len();
        write_string(name, &mut self.out);
        self.out.push(b':');
        open.value_from = self.out.len();
        if let Kind::Object { members_from, sorted, .. } = &mut open.kind
            && let Some(before) = self.members[*members_from..].last()
        {
            *sorted &= utf16_order(&self.names[before.name.clone()], name.as_bytes()).is_lt();
        }
        let name_from = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.members.push(Member { name: name_from..self.names.len(), text: text_from..text_from });
        self.follow(|token| token == name);
    }

    /// Advances the pointers of the innermost container to the entry that begins.
    fn follow(&mut self, matches_entry: impl Fn(&str) -> bool) {
        let Some(open) = self.open.last() else { return };
        let depth = self.open.len();
        let (aims, hits_from) = (open.aims.clone(), self.hits.len());
        for at in aims.clone() {
            let Aim { tokens, target } = self.aims[at];
            match tokens {
                [token] if matches_entry(token) => self.hits.push(Hit { depth, target }),
                [token, tokens @ ..] if matches_entry(token) => self.aims.push(Aim { tokens, target }),
                _ => {}
            }
        }
        self.forget_inside_excluded(hits_from, aims.end);
    }

    /// Drops the pointers to an excluded value and into it: neither the value nor anything inside it is included.
    fn forget_inside_excluded(&mut self, hits_from: usize, aims_from: usize) {
        if self.hits[hits_from..].iter().any(|hit| hit.target == Target::Exclude) {
            self.hits.truncate(hits_from);
            self.hits.push(Hit { depth: self.open.len(), target: Target::Exclude });
            self.aims.truncate(aims_from);
        }
    }

    /// Completes the entry of the innermost container, or the document.
    fn end_entry(&mut self) {
        let depth = self.open.len();
        let (entry_from, value_from, aims_to) =
            self.open.last().map_or((0, 0, 0), |open| (open.entry_from, open.value_from, open.aims.end));
        let mut excluded = false;
        while let Some(hit) = self.hits.pop_if(|hit| hit.depth == depth) {
            match hit.target {
                Target::Include(at) => self.included[at] = Some(self.out[value_from..].to_vec()),
                Target::Exclude => excluded = true,
            }
        }
        self.aims.truncate(aims_to);
        if excluded {
            self.out.truncate(entry_from);
        }
        if let Some(Open { kind: Kind::Object { .. }, .. }) = self.open.last()
            && let Some(member) = self.members.last_mut()
        {
            let to = self.out.len();
            member.text = if excluded { to..to } else { member.text.start..to };
        }
    }

    fn sort_members(&mut self, members_from: usize, inside_from: usize) -> Result<(), NotExactError> {
        let names = &self.names;
        let members = &mut self.members[members_from..];
        members.sort_unstable_by(|a, b| utf16_order(&names[a.name.clone()], &names[b.name.clone()]));
        if members.windows(2).any(|pair| names[pair[0].name.clone()] == names[pair[1].name.clone()]) {
            return Err(NotExactError::RepeatedName);
        }
        self.scratch.clear();
        self.scratch.reserve(self.out.len() - inside_from);
        for member in members.iter().filter(|member| !member.text.is_empty()) {
            if !self.scratch.is_empty() {
                self.scratch.push(b',');
            }
            self.scratch.extend_from_slice(&self.out[member.text.clone()]);
        }
        self.out.truncate(inside_from);
        self.out.extend_from_slice(&self.scratch);
        Ok(())
    }
}

impl From<JiterError> for NotExactError {
    fn from(_error: JiterError) -> NotExactError {
        NotExactError::NotJson
    }
}

/// Writes a string with the escapes of RFC 8785: only the necessary ones, in their shortest form.
fn write_string(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    out.push(b'"');
    // A fold, not a search: a loop without an early exit is vectorised, and nearly all strings need no escape.
    if bytes.iter().fold(false, |any, &byte| any | must_escape(byte)) {
        write_escaped(bytes, out);
    } else {
        out.extend_from_slice(bytes);
    }
    out.push(b'"');
}

fn must_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn write_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            control @ ..0x20 => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
            other => out.push(other),
        }
    }
}

/// Compares two UTF-8 texts by UTF-16 code units, without decoding either.
///
/// UTF-8 sorts by code point, and so does UTF-16 with one exception: characters that need surrogates (in UTF-8 a first
/// byte from 0xF0) sort before U+E000 to U+FFFF (0xEE and 0xEF). Two texts first differ either at such first bytes or
/// where both orders agree.
fn utf16_order(a: &[u8], b: &[u8]) -> Ordering {
    let differ = a.iter().zip(b).find(|(a, b)| a != b);
    let Some((&a_byte, &b_byte)) = differ else { return a.len().cmp(&b.len()) };
    let rank = |byte: u8| if matches!(byte, 0xEE | 0xEF) { byte + 0x10 } else { byte };
    rank(a_byte).cmp(&rank(b_byte))
}

/// Initial capacity for open containers and for their members: that of a usual request.
const OPEN_AT_FIRST: usize = 4;
const MEMBERS_AT_FIRST: usize = 8;

/// Initial capacity for names: that of a usual request. A longer body is no reason for more, because it may be all
/// values.
const NAMES_AT_FIRST: usize = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_sort_by_utf16_code_units(
            a in "[a\u{e9}\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}\u{1f602}\u{10ffff}]{0,4}",
            b in "[a\u{e9}\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}\u{1f602}\u{10ffff}]{0,4}",
        ) {
            let by_units = a.encode_utf16().cmp(b.encode_utf16());
            prop_assert_eq!(utf16_order(a.as_bytes(), b.as_bytes()), by_units);
        }
    }

    #[test]
    fn an_included_value_lacks_its_excluded_parts() {
        let pointers = |texts: &[&str]| -> Vec<Pointer> {
            texts.iter().map(|text| Pointer::parse(text).unwrap()).collect()
        };
        let select = |body: &str, include: &[&str], exclude: &[&str]| {
            let selected = select(body.as_bytes(), &pointers(include), &pointers(exclude)).unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (text(selected.rest), selected.included.into_iter().map(|v| v.map(text)).collect::<Vec<_>>())
        };
        let body = r#"{"z":[1,{"t":2,"a":3},4],"b":{"t":5,"c":6},"a":null}"#;
        let (rest, included) = select(body, &["/z/1", "/b", "/a", "/none", "/z/3", ""], &["/z/1/t", "/b/c"]);
        assert_eq!(rest, r#"{"a":null,"b":{"t":5},"z":[1,{"a":3},4]}"#);
        let expected =
            [Some(r#"{"a":3}"#), Some(r#"{"t":5}"#), Some("null"), None, None, Some(rest.as_str())];
        assert_eq!(included.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);

        assert_eq!(select(body, &[], &["/z", "/b", "/a"]).0, "{}");
        assert_eq!(
            select(body, &[], &["/z/0", "/z/2", "/b/t"]).0,
            r#"{"a":null,"b":{"c":6},"z":[{"a":3,"t":2}]}"#
        );
        assert_eq!(select(body, &[], &["/z/0", "/z/1", "/z/2", "/b", "/a"]).0, r#"{"z":[]}"#);
        assert_eq!(
            select(body, &["/b/c"], &["/b"]),
            (r#"{"a":null,"z":[1,{"a":3,"t":2},4]}"#.into(), vec![None])
        );
        assert_eq!(select(body, &["/a"], &[""]), (String::new(), vec![None]));
    }
}
