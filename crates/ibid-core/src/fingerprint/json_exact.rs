//! `json-exact`: one text for all spellings of the same JSON value, and never one for two values.
//!
//! Members in the order and strings with the escapes of RFC 8785, numbers by their exact decimal value
//! (see `number`). A reader over tokens, because a tree of values has already lost repeated names and digits
//! by the time one could look. What RFC 7493 forbids (repeated names, lone surrogates, bad UTF-8) has no such
//! text: the caller then takes the body's bytes.

use std::cmp::Ordering;
use std::ops::Range;

use jiter::{Jiter, JiterError, Peek};

use super::number;
use super::pointer::{Pointer, token_is_index};

/// The exact text of a JSON document.
pub fn canonical(body: &[u8]) -> Result<Vec<u8>, NotExact> {
    Ok(select(body, &[], &[])?.rest)
}

/// Why a body has no exact text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotExact {
    /// Not a JSON document in UTF-8, or one with a lone surrogate, or with an integer of more digits than the
    /// tokenizer takes (4300).
    #[error("the body is not JSON")]
    NotJson,
    /// An object has two members of one name, and receivers differ on which of them counts.
    #[error("an object in the body has two members of one name")]
    RepeatedName,
    /// Deeper than [`DEPTH_MAX`].
    #[error("the body is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// A number too large or too small for any arithmetic.
    #[error("a number in the body has an exponent out of range")]
    Exponent,
}

/// Arrays and objects within each other. Where serde_json and several other readers stop too, so a deeper body
/// hardly reaches a handler; it also bounds how often one byte is moved when nested objects are put in order.
pub const DEPTH_MAX: usize = 128;

/// A document read under pointers.
pub(super) struct Selected {
    /// The whole, without what was excluded.
    pub(super) rest: Vec<u8>,
    /// The value of each included pointer, without what was excluded; `None` where it does not resolve.
    pub(super) included: Vec<Option<Vec<u8>>>,
}

/// Reads a document once, taking copies of what is included and dropping what is excluded on the way. An
/// excluded member is gone with its name, so its absence looks the same; it still must be well-formed.
pub(super) fn select(body: &[u8], include: &[Pointer], exclude: &[Pointer]) -> Result<Selected, NotExact> {
    let mut writer = Writer {
        // Almost never longer than what was read: only numbers grow, by a few zeros.
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
        let ended = writer.begin_value(&mut json, peek)?;
        let next = match ended {
            Ended::Yes => writer.end_values(&mut json)?,
            Ended::No(next) => Some(next),
        };
        match next {
            Some(next) => peek = next,
            None => break,
        }
    }
    json.finish()?;
    Ok(Selected { rest: writer.out, included: writer.included })
}

/// Whether a value is complete, or which value inside it comes first.
enum Ended {
    Yes,
    No(Peek),
}

/// The document as far as it was read. Its own stack instead of recursion: depth is the sender's choice.
#[derive(Default)]
struct Writer<'r> {
    out: Vec<u8>,
    open: Vec<Open>,
    /// Members of all open objects; each object owns the tail that begins at its `members_from`.
    members: Vec<Member>,
    /// Their names, decoded, end to end.
    names: Vec<u8>,
    /// For putting an object's members in order.
    scratch: Vec<u8>,
    /// Pointers that may still lead somewhere below the open containers, each by its remaining tokens.
    aims: Vec<Aim<'r>>,
    /// Pointers that name a value now being read.
    hits: Vec<Hit>,
    included: Vec<Option<Vec<u8>>>,
}

/// An array or object whose end was not yet read.
struct Open {
    kind: Kind,
    /// Where its first byte after the bracket stands.
    inside_from: usize,
    /// Where the value being read begins, its comma and name included.
    entry_from: usize,
    /// Where the value being read begins.
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
    fn begin_value(&mut self, json: &mut Jiter<'_>, peek: Peek) -> Result<Ended, NotExact> {
        match peek {
            Peek::Object => {
                let members_from = self.members.len();
                let names_from = self.names.len();
                self.open(b'{', Kind::Object { members_from, names_from, sorted: true })?;
                match json.known_object()? {
                    Some(name) => self.begin_member(name),
                    None => return self.close(b'}').map(|()| Ended::Yes),
                }
                return Ok(Ended::No(json.peek()?));
            }
            Peek::Array => {
                self.open(b'[', Kind::Array { index: 0 })?;
                let Some(first) = json.known_array()? else {
                    return self.close(b']').map(|()| Ended::Yes);
                };
                self.begin_element();
                return Ok(Ended::No(first));
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
            // Anything else that is no number either is refused by the number's own grammar.
            _ => number::write(json.known_number_bytes(peek)?, &mut self.out)?,
        }
        Ok(Ended::Yes)
    }

    /// A value was completed: closes every container that ends with it. The next value, or `None` at the end
    /// of the document.
    fn end_values(&mut self, json: &mut Jiter<'_>) -> Result<Option<Peek>, NotExact> {
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

    fn open(&mut self, bracket: u8, kind: Kind) -> Result<(), NotExact> {
        if self.open.len() == DEPTH_MAX {
            return Err(NotExact::TooDeep);
        }
        self.out.push(bracket);
        let at = self.out.len();
        let aims_from = self.open.last().map_or(0, |open| open.aims.end);
        let aims = aims_from..self.aims.len();
        self.open.push(Open { kind, inside_from: at, entry_from: at, value_from: at, aims });
        Ok(())
    }

    fn close(&mut self, bracket: u8) -> Result<(), NotExact> {
        // Only what `open` pushed is closed, each once.
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

    /// Carries the pointers of the innermost container on to the entry that begins.
    fn follow(&mut self, leads_there: impl Fn(&str) -> bool) {
        let Some(open) = self.open.last() else { return };
        let depth = self.open.len();
        let (aims, hits_from) = (open.aims.clone(), self.hits.len());
        for at in aims.clone() {
            let Aim { tokens, target } = self.aims[at];
            match tokens {
                [token] if leads_there(token) => self.hits.push(Hit { depth, target }),
                [token, tokens @ ..] if leads_there(token) => self.aims.push(Aim { tokens, target }),
                _ => {}
            }
        }
        self.forget_inside_excluded(hits_from, aims.end);
    }

    /// Nothing inside an excluded value is included, nor the value itself.
    fn forget_inside_excluded(&mut self, hits_from: usize, aims_from: usize) {
        if self.hits[hits_from..].iter().any(|hit| hit.target == Target::Exclude) {
            self.hits.truncate(hits_from);
            self.hits.push(Hit { depth: self.open.len(), target: Target::Exclude });
            self.aims.truncate(aims_from);
        }
    }

    /// The entry of the innermost container (or the document) was completed.
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

    fn sort_members(&mut self, members_from: usize, inside_from: usize) -> Result<(), NotExact> {
        let names = &self.names;
        let members = &mut self.members[members_from..];
        members.sort_unstable_by(|a, b| utf16_order(&names[a.name.clone()], &names[b.name.clone()]));
        if members.windows(2).any(|pair| names[pair[0].name.clone()] == names[pair[1].name.clone()]) {
            return Err(NotExact::RepeatedName);
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

impl From<JiterError> for NotExact {
    fn from(_where_and_why: JiterError) -> NotExact {
        NotExact::NotJson
    }
}

/// A string with the escapes RFC 8785 keeps: those that must be, in their shortest form.
fn write_string(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    out.push(b'"');
    // Folded, not searched: a loop without exit becomes a few wide compares, and nearly all strings pass.
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

/// The order of two UTF-8 texts by UTF-16 code units, without decoding either.
///
/// UTF-8 sorts by code point, and so does UTF-16 but for one thing: what needs surrogates (in UTF-8 a first byte
/// from 0xF0) sorts before U+E000 to U+FFFF (0xEE and 0xEF). Texts differ first either at such first bytes or
/// where both orders agree.
fn utf16_order(a: &[u8], b: &[u8]) -> Ordering {
    let differ = a.iter().zip(b).find(|(a, b)| a != b);
    let Some((&a_byte, &b_byte)) = differ else { return a.len().cmp(&b.len()) };
    let rank = |byte: u8| if matches!(byte, 0xEE | 0xEF) { byte + 0x10 } else { byte };
    rank(a_byte).cmp(&rank(b_byte))
}

/// Room for open containers and for their members at first: those of a usual request.
const OPEN_AT_FIRST: usize = 4;
const MEMBERS_AT_FIRST: usize = 8;

/// Room for names at first: those of a usual request. A longer body would be no reason for more, values may be all of it.
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
    fn a_value_is_taken_without_what_is_excluded_from_it() {
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
