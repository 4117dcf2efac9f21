//! A record as an item, and the item as a record.
//!
//! The columns are those of `ibid_core::row`, under short names, because DynamoDB charges for names. A column that would be
//! null or empty is left out.
//!
//! | attribute | meaning |
//! | --- | --- |
//! | `i`, `k` | id, and `r` for the record |
//! | `v` | version: count and nonce, 12 bytes |
//! | `n`, `o`, `q` | birth, owner, number of the policy |
//! | `a`, `s`, `g`, `z`, `st` | attempt, state, flags, recovery point, status |
//! | `c`, `r`, `f`, `d`, `e`, `p` | instants: created, ran, completed, due, expires, purge |
//! | `h`, `t`, `m`, `u`, `j`, `x` | fingerprint, tenant, method, path, key, note |
//! | `l`, `b`, `rb`, `sealed` | response: lines, body if it is small, the location of the body, and the key that it is encrypted under |
//! | `bo` | requests and results of phases: the location of each |
//! | `le` | lease in microseconds, so that a renewal needs no read |
//! | `y` | the writer's time at the last write or renewal, so that a renewal that arrives late shortens no lease |
//! | `w` | order of the index `due`, with `d` |
//! | `ro`, `ra` | order of the index `reap`, and the instant of the next step |
//! | `ttl_s` | second at which DynamoDB itself may delete the item |

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use ibid_core::change::{Change, Draft, Expect, INTERVAL_MAX, InstantChange};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::record::{Flags, Nonce, State, Version};
use ibid_core::row::{
    INLINE_BODY_MAX, RecordColumns, ResponseColumns, RowCells, TOMBSTONE_FLAG, UnreadableRowError, bits,
    micros,
};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::time::Timestamp;

use crate::order::Shards;

pub(crate) type Item = HashMap<String, AttributeValue>;

/// Sort key of a record.
pub(crate) const RECORD: &str = "r";

pub(crate) fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn binary(value: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

pub(crate) fn string(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// Returns the primary key of an item.
pub(crate) fn key(id: &[u8], kind: &str) -> Item {
    HashMap::from([("i".to_owned(), binary(id)), ("k".to_owned(), string(kind))])
}

pub(crate) fn version(version: Version) -> AttributeValue {
    binary([&version.count.to_be_bytes()[..], &version.nonce.0.to_be_bytes()].concat())
}

pub(crate) fn get_number(item: &Item, name: &str) -> Option<i64> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

pub(crate) fn get_bytes<'a>(item: &'a Item, name: &str) -> Option<&'a [u8]> {
    Some(item.get(name)?.as_b().ok()?.as_ref())
}

pub(crate) fn get_text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    Some(item.get(name)?.as_s().ok()?.as_str())
}

/// Returns the id of a record's item.
pub(crate) fn get_id(item: &Item) -> Option<RecordId> {
    get_bytes(item, "i")?.try_into().ok().map(RecordId::from_bytes)
}

/// Returns the version of a record's item.
pub(crate) fn get_version(item: &Item) -> Option<Version> {
    let (count, nonce) = get_bytes(item, "v")?.split_first_chunk()?;
    let nonce = Nonce(u64::from_be_bytes(nonce.try_into().ok()?));
    Some(Version { count: u32::from_be_bytes(*count), nonce })
}

/// An update expression with its values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Update {
    set: Vec<String>,
    remove: Vec<String>,
    /// Attributes inside `bo`, whose names are numbers.
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: Item,
    pub(crate) condition: String,
}

impl Update {
    /// Sets an attribute, or removes it.
    pub(crate) fn put(&mut self, name: &str, value: Option<AttributeValue>) {
        match value {
            Some(value) => {
                self.set.push(format!("{name} = :{name}"));
                self.values.insert(format!(":{name}"), value);
            }
            None => self.remove.push(name.to_owned()),
        }
    }

    /// Adds a value for the condition.
    pub(crate) fn value(&mut self, name: &str, value: AttributeValue) {
        self.values.insert(name.to_owned(), value);
    }

    pub(crate) fn expression(&self) -> String {
        let part = |word: &str, parts: &[String]| match parts {
            [] => String::new(),
            parts => format!("{word} {} ", parts.join(", ")),
        };
        part("SET", &self.set) + &part("REMOVE", &self.remove)
    }
}

/// Builds the update that writes the record of a change at `now`, without its condition. An insert is an update of an item
/// that must be absent.
///
/// A record that is due at once, and not leased, is due at `past`, an instant that has passed on every node: otherwise it
/// would wait until every clock has come that far.
pub(crate) fn record_update(
    change: &Change,
    columns: &RecordColumns<'_>,
    now: Timestamp,
    past: Timestamp,
    shards: Shards,
) -> Update {
    let (draft, is_insert) = (columns.draft, change.expect == Expect::Absent);
    let mut update = Update::default();
    let at = |interval: Option<Duration>| interval.map(|interval| now.after(interval.min(INTERVAL_MAX)));
    let is_due_at_once = draft.due_in == Some(Duration::ZERO) && draft.state != State::LEASED;
    let attributes = RecordAttributes {
        id: &change.id,
        identity: &draft.identity,
        version: columns.version,
        birth: draft.birth,
        owner: columns.owner,
        attempt: columns.attempt,
        state: draft.state,
        flags: draft.flags,
        is_tombstone: false,
        fingerprint: columns.fingerprint,
        policy: columns.policy,
        lease: draft.policy.lease,
        point: columns.point,
        due_at: if is_due_at_once { Some(past) } else { at(draft.due_in) },
        expires_at: at(draft.expires_in),
        purge_at: at(draft.purge_in),
        note: columns.note.as_deref(),
        status: draft.note.status,
    };
    attributes.put(&mut update, shards);
    update.put("y", Some(number(now.as_micros())));
    put_marks(&mut update, draft, now, is_insert);
    match &columns.response {
        ResponseColumns::Keep => {}
        ResponseColumns::Clear => RESPONSE.into_iter().for_each(|name| update.put(name, None)),
        ResponseColumns::Set { lines, inline, apart } => {
            let body = inline.or(*apart).map_or(&[][..], |body| body);
            put_response(&mut update, lines, body, draft.birth, change.nonce);
            update.put("sealed", None);
        }
    }
    let bodies = change.bodies.iter().map(|body| (body.kind.code(), &body.data));
    let bodies = bodies.map(|(kind, data)| (kind.to_string(), encode_body(data, draft.birth, change.nonce)));
    if is_insert || change.clears_bodies {
        update.put("bo", Some(AttributeValue::M(bodies.collect())));
    } else {
        for (kind, body) in bodies {
            update.set.push(format!("bo.#k{kind} = :k{kind}"));
            update.values.insert(format!(":k{kind}"), body);
            update.names.insert(format!("#k{kind}"), kind);
        }
    }
    update
}

/// Sets, keeps or clears the instants that count from no interval.
fn put_marks(update: &mut Update, draft: &Draft, now: Timestamp, is_insert: bool) {
    for (name, mark) in [("c", draft.created), ("r", draft.ran), ("f", draft.completed)] {
        // Every record was created at some instant.
        let is_created = name == "c" && (is_insert || mark == InstantChange::Clear);
        match mark {
            InstantChange::Now => update.put(name, Some(number(now.as_micros()))),
            _ if is_created => update.put(name, Some(number(now.as_micros()))),
            InstantChange::Keep => {}
            InstantChange::Clear => update.put(name, None),
        }
    }
}

/// Sets the response; a large body is in parts under `nonce`.
pub(crate) fn put_response(update: &mut Update, lines: &[u8], body: &[u8], birth: Nonce, nonce: Nonce) {
    let bytes = |bytes: &[u8]| Some(bytes).filter(|bytes| !bytes.is_empty()).map(binary);
    let is_inline = body.len() <= INLINE_BODY_MAX;
    update.put("l", bytes(lines));
    update.put("b", bytes(body).filter(|_| is_inline));
    let location = match is_inline {
        true => BodyLocation::Inline(&[]),
        false => BodyLocation::Parts { nonce, count: part_count(body) },
    };
    update.put("rb", Some(binary(location.encode(birth))));
}

/// Returns the entry of a body in `bo`; a large one is in parts under `nonce`.
pub(crate) fn encode_body(body: &[u8], birth: Nonce, nonce: Nonce) -> AttributeValue {
    let location = match body.len() <= INLINE_BODY_MAX {
        true => BodyLocation::Inline(body),
        false => BodyLocation::Parts { nonce, count: part_count(body) },
    };
    binary(location.encode(birth))
}

/// The attributes of a record that every write sets.
pub(crate) struct RecordAttributes<'a> {
    pub(crate) id: &'a RecordId,
    pub(crate) identity: &'a Identity,
    pub(crate) version: Version,
    pub(crate) birth: Nonce,
    /// `None` if it is the nonce of the insert.
    pub(crate) owner: Option<Nonce>,
    /// Number of attempts; `None` for 1.
    pub(crate) attempt: Option<u32>,
    pub(crate) state: State,
    pub(crate) flags: Flags,
    pub(crate) is_tombstone: bool,
    pub(crate) fingerprint: Option<[u8; Fingerprint::LEN]>,
    pub(crate) policy: i64,
    pub(crate) lease: Duration,
    /// Last committed phase; `None` for 0.
    pub(crate) point: Option<u16>,
    pub(crate) due_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) purge_at: Option<Timestamp>,
    pub(crate) note: Option<&'a str>,
    pub(crate) status: Option<u16>,
}

impl RecordAttributes<'_> {
    pub(crate) fn put(&self, update: &mut Update, shards: Shards) {
        let instant = |at: Timestamp| number(at.as_micros());
        let nonce = |nonce: Nonce| binary(bits(nonce).to_be_bytes());
        let text = |text: &str| Some(text).filter(|text| !text.is_empty()).map(string);
        update.put("v", Some(version(self.version)));
        update.put("n", Some(nonce(self.birth)));
        update.put("o", self.owner.map(nonce));
        update.put("q", Some(binary(self.policy.to_be_bytes())));
        update.put("a", self.attempt.map(|attempt| number(attempt.into())));
        update.put("s", Some(number(self.state.code().into())));
        let tombstone = if self.is_tombstone { TOMBSTONE_FLAG } else { 0 };
        update.put("g", Some(number((self.flags.bits() | tombstone).into())));
        update.put("z", self.point.map(|point| number(point.into())));
        update.put("st", self.status.map(|status| number(status.into())));
        update.put("d", self.due_at.map(instant));
        update.put("e", self.expires_at.map(instant));
        update.put("p", self.purge_at.map(instant));
        update.put("le", self.due_at.map(|_| number(micros(self.lease))));
        update.put("w", self.due_at.map(|_| string(shards.due(self.state, self.id.as_bytes()))));
        update.put("h", self.fingerprint.map(binary));
        update.put("t", text(self.identity.tenant.as_str()));
        update.put("m", text(&self.identity.operation.method));
        update.put("u", text(&self.identity.operation.path));
        update.put("j", text(self.identity.key.as_str()));
        update.put("x", self.note.and_then(text));
        let reap = ReapInstants {
            expires: self.expires_at,
            purge: self.purge_at,
            is_dead_letter: self.flags.dead_letter,
            is_tombstone: self.is_tombstone,
        };
        reap.put(update, self.id, shards);
    }
}

/// The instants that decide when the reaper looks at a record next.
pub(crate) struct ReapInstants {
    pub(crate) expires: Option<Timestamp>,
    pub(crate) purge: Option<Timestamp>,
    pub(crate) is_dead_letter: bool,
    pub(crate) is_tombstone: bool,
}

impl ReapInstants {
    /// Enters the record into the reaper's order, or takes it out.
    pub(crate) fn put(&self, update: &mut Update, id: &RecordId, shards: Shards) {
        let purge = self.purge.filter(|_| !self.is_dead_letter);
        let strip = self.expires.filter(|_| !self.is_tombstone);
        let next = purge.map(|purge| strip.map_or(purge, |strip| strip.min(purge)));
        update.put("ra", next.map(|at| number(at.as_micros())));
        update.put("ro", next.map(|_| string(shards.reap_records(id.as_bytes()))));
        update.put("ttl_s", purge.map(|at| number(at.after(TTL_MARGIN).as_secs())));
    }
}

/// The location of a body: in the item, or in separate items. It names the generation that wrote it, so that a later one does not
/// see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLocation<'a> {
    Inline(&'a [u8]),
    Parts { nonce: Nonce, count: u32 },
}

impl<'a> BodyLocation<'a> {
    fn encode(self, birth: Nonce) -> Vec<u8> {
        let birth = birth.0.to_be_bytes();
        match self {
            BodyLocation::Inline(body) => [&birth[..], &[0], body].concat(),
            BodyLocation::Parts { nonce, count } => {
                [&birth[..], &[1], &nonce.0.to_be_bytes(), &count.to_be_bytes()].concat()
            }
        }
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<(Nonce, BodyLocation<'a>)> {
        let (birth, rest) = bytes.split_first_chunk()?;
        let location = match rest.split_first()? {
            (0, body) => BodyLocation::Inline(body),
            (1, parts) => {
                let (nonce, count) = parts.split_first_chunk()?;
                let count = u32::from_be_bytes(count.try_into().ok()?);
                BodyLocation::Parts { nonce: Nonce(u64::from_be_bytes(*nonce)), count }
            }
            _ => return None,
        };
        Some((Nonce(u64::from_be_bytes(*birth)), location))
    }
}

/// Returns the location of the response of the record's present generation.
pub(crate) fn response_location(item: &Item) -> Option<BodyLocation<'_>> {
    let (birth, location) = BodyLocation::decode(get_bytes(item, "rb")?)?;
    (get_bytes(item, "n")? == birth.0.to_be_bytes()).then_some(location)
}

/// Returns the locations of all other bodies: kind, generation and location.
pub(crate) fn body_locations(item: &Item) -> impl Iterator<Item = (u32, Nonce, BodyLocation<'_>)> {
    let bodies = item.get("bo").and_then(|bodies| bodies.as_m().ok()).into_iter().flatten();
    bodies.filter_map(|(kind, body)| {
        let (birth, location) = BodyLocation::decode(body.as_b().ok()?.as_ref())?;
        Some((kind.parse().ok()?, birth, location))
    })
}

pub(crate) fn part_count(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(PART_MAX)).unwrap_or(u32::MAX)
}

pub(crate) fn is_tombstone(item: &Item) -> bool {
    get_number(item, "g").is_some_and(|flags| flags & i64::from(TOMBSTONE_FLAG) != 0)
}

pub(crate) fn is_dead_letter(item: &Item) -> bool {
    let bits = get_number(item, "g").and_then(|flags| u8::try_from(flags & 0xff).ok());
    bits.is_some_and(|bits| Flags::from_bits(bits).dead_letter)
}

pub(crate) fn is_in_state(item: &Item, state: State) -> bool {
    get_number(item, "s") == Some(state.code().into())
}

/// The columns of an item, in the order of `ibid_core::row::RECORD_COLUMNS`.
pub(crate) struct ItemCells<'r> {
    item: &'r Item,
    column: usize,
    /// Body of the response; `None` if there is no response.
    body: Option<Vec<u8>>,
    has_response: bool,
}

impl<'r> ItemCells<'r> {
    pub(crate) fn new(item: &'r Item, body: Option<Vec<u8>>) -> ItemCells<'r> {
        ItemCells { item, column: 0, has_response: body.is_some(), body }
    }

    fn next(&mut self) -> Result<(&'static str, Option<&'r AttributeValue>), UnreadableRowError> {
        let name = COLUMNS.get(self.column).ok_or(UnreadableRowError("a column is missing"))?;
        self.column += 1;
        Ok((name, self.item.get(*name)))
    }
}

impl<'r> RowCells<'r> for ItemCells<'r> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        let column = self.column;
        let value = match self.next()? {
            (_, None) => return Ok(None),
            (_, Some(AttributeValue::N(digits))) => digits.parse().ok(),
            ("v", Some(_)) => get_version(self.item)
                .map(|version| if column == COUNT { version.count.into() } else { bits(version.nonce) }),
            (_, Some(AttributeValue::B(bytes))) => bytes.as_ref().try_into().ok().map(i64::from_be_bytes),
            _ => None,
        };
        value.map(Some).ok_or(UnreadableRowError("not a number"))
    }

    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError> {
        match self.next()? {
            // The response of an earlier generation is not this one's.
            ("sealed", _) if !self.has_response => Ok(None),
            // An empty text is left out; a note is null then.
            ("x" | "sealed", None) => Ok(None),
            (_, None) => Ok(Some(Cow::Borrowed(""))),
            (_, Some(AttributeValue::S(text))) => Ok(Some(Cow::Borrowed(text))),
            _ => Err(UnreadableRowError("not a text")),
        }
    }

    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError> {
        match self.next()? {
            ("b", _) => Ok(self.body.take().map(Cow::Owned)),
            ("l", None) => Ok(self.body.as_ref().map(|_| Cow::Borrowed(&[][..]))),
            ("l", Some(_)) if self.body.is_none() => Ok(None),
            (_, None) => Ok(None),
            (_, Some(AttributeValue::B(bytes))) => Ok(Some(Cow::Borrowed(bytes.as_ref()))),
            _ => Err(UnreadableRowError("not bytes")),
        }
    }
}

const COLUMNS: [&str; 26] = [
    "i", "v", "v", "n", "o", "a", "s", "g", "q", "z", "c", "r", "f", "d", "e", "p", "h", "t", "m", "u", "j",
    "x", "st", "l", "b", "sealed",
];

/// Attributes of a response.
pub(crate) const RESPONSE: [&str; 4] = ["l", "b", "rb", "sealed"];

/// Index of the version's count among the columns.
const COUNT: usize = 1;

/// Largest part of a body. An item may have 400 KiB with its names.
pub(crate) const PART_MAX: usize = 380_000;

/// Time after the purge instant from which DynamoDB itself may delete a record: the reaper does not keep up, or is switched
/// off. Longer than clocks differ, and so short that a table with more keys than one reaper removes does not fill up.
pub(crate) const TTL_MARGIN: Duration = Duration::from_secs(3600);
