//! Changes as the arrays that `begin.sql` and `commit.sql` take: one array per column, one element per Change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ibid_core::change::{Change, Draft, Expect};
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, State};
use tokio_postgres::types::Type;

use super::connect::Param;
use super::row;

/// What both statements take.
#[derive(Default)]
pub(super) struct Columns<'a> {
    id: Vec<&'a [u8]>,
    expect: Vec<i64>,
    was_count: Vec<i64>,
    was_nonce: Vec<i64>,
    count: Vec<i64>,
    nonce: Vec<i64>,
    birth: Vec<i64>,
    owner: Vec<i64>,
    attempt: Vec<i64>,
    lease_us: Vec<i64>,
    state: Vec<i64>,
    flags: Vec<i64>,
    policy: Vec<i64>,
    point: Vec<i64>,
    created: Vec<i64>,
    ran: Vec<i64>,
    completed: Vec<i64>,
    due_us: Vec<Option<i64>>,
    expires_us: Vec<Option<i64>>,
    purge_us: Vec<Option<i64>>,
    fingerprint: Vec<Option<Vec<u8>>>,
    tenant: Vec<&'a str>,
    method: Vec<&'a str>,
    path: Vec<&'a str>,
    key: Vec<&'a str>,
    note: Vec<Vec<u8>>,
    /// From the begin to the earliest end of replay.
    keep_us: Vec<i64>,
    /// Whether the due instant is the end of a first lease.
    first: Vec<bool>,
    draft: Vec<bool>,
    clears: Vec<bool>,
    body_id: Vec<&'a [u8]>,
    body_kind: Vec<i64>,
    body_data: Vec<&'a [u8]>,
    event_id: Vec<&'a [u8]>,
    event_what: Vec<i64>,
    event_detail: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(changes: impl Iterator<Item = &'a Change>, numbers: &Numbers) -> Columns<'a> {
        let mut columns = Columns::default();
        changes.for_each(|change| columns.push(change, numbers));
        columns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    fn push(&mut self, change: &'a Change, numbers: &Numbers) {
        let id: &[u8] = change.id.as_bytes();
        let (expect, was) = match change.expect {
            Expect::Absent => (0, None),
            Expect::Version(version) => (1, Some(version)),
            Expect::Due(version) => (2, Some(version)),
            Expect::Anything => (3, None),
        };
        self.id.push(id);
        self.expect.push(expect);
        self.was_count.push(was.map_or(0, |version| version.count.into()));
        self.was_nonce.push(was.map_or(0, |version| bits(version.nonce)));
        self.count.push(change.version().count.into());
        self.nonce.push(bits(change.nonce));
        self.draft.push(change.draft.is_some());
        self.clears.push(change.clears_bodies && change.draft.is_some());
        self.push_draft(change.draft.as_ref(), numbers);
        for body in change.bodies.iter().filter(|_| change.draft.is_some()) {
            self.body_id.push(id);
            self.body_kind.push(body.kind.code().into());
            self.body_data.push(&body.data);
        }
        for line in &change.history {
            self.event_id.push(id);
            self.event_what.push(line.what.code().into());
            self.event_detail.push(&line.detail);
        }
    }

    /// Without a draft the columns are filled with what nobody reads.
    fn push_draft(&mut self, draft: Option<&'a Draft>, numbers: &Numbers) {
        let number = |value: fn(&Draft) -> i64| draft.map_or(0, value);
        self.birth.push(number(|draft| bits(draft.birth)));
        self.owner.push(number(|draft| bits(draft.owner)));
        self.attempt.push(number(|draft| draft.attempt.into()));
        self.lease_us.push(number(|draft| micros(draft.policy.lease)));
        self.state.push(number(|draft| draft.state.code().into()));
        self.flags.push(number(|draft| draft.flags.bits().into()));
        self.policy.push(draft.map_or(0, |draft| numbers.of(&draft.policy)));
        self.point.push(number(|draft| draft.point.into()));
        self.created.push(number(|draft| draft.created.code().into()));
        self.ran.push(number(|draft| draft.ran.code().into()));
        self.completed.push(number(|draft| draft.completed.code().into()));
        self.due_us.push(draft.and_then(|draft| draft.due_in).map(micros));
        self.expires_us.push(draft.and_then(|draft| draft.expires_in).map(micros));
        self.purge_us.push(draft.and_then(|draft| draft.purge_in).map(micros));
        let fingerprint = draft.and_then(|draft| draft.fingerprint.as_ref());
        self.fingerprint.push(fingerprint.map(|fingerprint| fingerprint.to_bytes().to_vec()));
        self.tenant.push(draft.map_or("", |draft| draft.identity.tenant.as_str()));
        self.method.push(draft.map_or("", |draft| &draft.identity.operation.method));
        self.path.push(draft.map_or("", |draft| &draft.identity.operation.path));
        self.key.push(draft.map_or("", |draft| draft.identity.key.as_str()));
        self.note.push(draft.map_or_else(Vec::new, |draft| draft.note.to_bytes()));
        self.keep_us.push(number(|draft| micros(draft.policy.retention)));
        self.first.push(draft.is_some_and(has_first_lease));
    }

    /// In the order of `begin.sql`.
    pub(super) fn begin(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.id, Type::BYTEA_ARRAY),
            (&self.nonce, Type::INT8_ARRAY),
            (&self.birth, Type::INT8_ARRAY),
            (&self.owner, Type::INT8_ARRAY),
            (&self.attempt, Type::INT8_ARRAY),
            (&self.lease_us, Type::INT8_ARRAY),
            (&self.state, Type::INT8_ARRAY),
            (&self.flags, Type::INT8_ARRAY),
            (&self.policy, Type::INT8_ARRAY),
            (&self.point, Type::INT8_ARRAY),
            (&self.ran, Type::INT8_ARRAY),
            (&self.completed, Type::INT8_ARRAY),
            (&self.due_us, Type::INT8_ARRAY),
            (&self.expires_us, Type::INT8_ARRAY),
            (&self.purge_us, Type::INT8_ARRAY),
            (&self.fingerprint, Type::BYTEA_ARRAY),
            (&self.tenant, Type::TEXT_ARRAY),
            (&self.method, Type::TEXT_ARRAY),
            (&self.path, Type::TEXT_ARRAY),
            (&self.key, Type::TEXT_ARRAY),
            (&self.note, Type::BYTEA_ARRAY),
            (&self.keep_us, Type::INT8_ARRAY),
            (&self.first, Type::BOOL_ARRAY),
        ];
        params.extend(self.beside());
        params
    }

    /// In the order of `commit.sql`.
    pub(super) fn commit(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.id, Type::BYTEA_ARRAY),
            (&self.expect, Type::INT8_ARRAY),
            (&self.was_count, Type::INT8_ARRAY),
            (&self.was_nonce, Type::INT8_ARRAY),
            (&self.count, Type::INT8_ARRAY),
            (&self.nonce, Type::INT8_ARRAY),
            (&self.birth, Type::INT8_ARRAY),
            (&self.owner, Type::INT8_ARRAY),
            (&self.attempt, Type::INT8_ARRAY),
            (&self.lease_us, Type::INT8_ARRAY),
            (&self.state, Type::INT8_ARRAY),
            (&self.flags, Type::INT8_ARRAY),
            (&self.policy, Type::INT8_ARRAY),
            (&self.point, Type::INT8_ARRAY),
            (&self.created, Type::INT8_ARRAY),
            (&self.ran, Type::INT8_ARRAY),
            (&self.completed, Type::INT8_ARRAY),
            (&self.due_us, Type::INT8_ARRAY),
            (&self.expires_us, Type::INT8_ARRAY),
            (&self.purge_us, Type::INT8_ARRAY),
            (&self.fingerprint, Type::BYTEA_ARRAY),
            (&self.tenant, Type::TEXT_ARRAY),
            (&self.method, Type::TEXT_ARRAY),
            (&self.path, Type::TEXT_ARRAY),
            (&self.key, Type::TEXT_ARRAY),
            (&self.note, Type::BYTEA_ARRAY),
            (&self.draft, Type::BOOL_ARRAY),
            (&self.clears, Type::BOOL_ARRAY),
            (&self.keep_us, Type::INT8_ARRAY),
        ];
        params.extend(self.beside());
        params
    }

    fn beside(&self) -> [Param<'_>; 6] {
        [
            (&self.body_id, Type::BYTEA_ARRAY),
            (&self.body_kind, Type::INT8_ARRAY),
            (&self.body_data, Type::BYTEA_ARRAY),
            (&self.event_id, Type::BYTEA_ARRAY),
            (&self.event_what, Type::INT8_ARRAY),
            (&self.event_detail, Type::TEXT_ARRAY),
        ]
    }
}

/// Policies that were sent before, each encoded once: one Arc is shared by all records of a route.
#[derive(Debug, Default)]
pub(super) struct Numbering(Mutex<Vec<Arc<Numbered>>>);

/// A policy as it is stored. It holds the policy, so that the Arc stays this one's.
#[derive(Debug)]
struct Numbered {
    policy: Arc<Policy>,
    digest: i64,
    data: Vec<u8>,
}

/// The policies of one batch: most have one.
pub(super) struct Numbers(Vec<Arc<Numbered>>);

impl Numbering {
    pub(super) fn of<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> Numbers {
        let mut numbers = Numbers(Vec::new());
        for policy in changes.filter_map(|change| change.draft.as_ref()).map(|draft| &draft.policy) {
            if find(&numbers.0, policy).is_none() {
                numbers.0.push(self.numbered(policy));
            }
        }
        numbers
    }

    fn numbered(&self, policy: &Arc<Policy>) -> Arc<Numbered> {
        // Nothing in here panics half-way through a change.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(numbered) = find(&known, policy) {
            return numbered.clone();
        }
        let (digest, data) = row::encoded(policy);
        let numbered = Arc::new(Numbered { policy: policy.clone(), digest, data });
        if known.len() >= NUMBERED_MAX {
            known.clear();
        }
        known.push(numbered.clone());
        numbered
    }
}

impl Numbers {
    pub(super) fn of(&self, policy: &Arc<Policy>) -> i64 {
        // Each draft's policy was numbered above.
        find(&self.0, policy).map_or(0, |numbered| numbered.digest)
    }

    /// Of all of them, some perhaps twice.
    pub(super) fn digests(&self) -> impl Iterator<Item = i64> {
        self.0.iter().map(|numbered| numbered.digest)
    }

    /// Every policy once, by its digest.
    pub(super) fn all(&self) -> HashMap<i64, &[u8]> {
        self.0.iter().map(|numbered| (numbered.digest, &numbered.data[..])).collect()
    }
}

fn find<'n>(among: &'n [Arc<Numbered>], policy: &Arc<Policy>) -> Option<&'n Arc<Numbered>> {
    among.iter().find(|numbered| Arc::ptr_eq(&numbered.policy, policy))
}

/// Whether a record that is begun so is due when its first lease ends, and the reaper's instant as far behind that as its policy
/// says: that is how upkeep finds it.
pub(super) fn has_first_lease(draft: &Draft) -> bool {
    draft.state == State::InProgress
        && draft.due_in == Some(draft.policy.lease)
        && (draft.expires_in, draft.purge_in) == (None, None)
        && ahead(&draft.policy).is_some()
}

/// Microseconds from the end of a first lease to the reaper's instant; none if an end of them is beyond all time.
pub(super) fn ahead(policy: &Policy) -> Option<i64> {
    let (keep, lease) = (micros(policy.retention), micros(policy.lease));
    (keep <= INTERVAL_MAX && lease <= INTERVAL_MAX).then(|| keep - lease)
}

/// A nonce with the same bits in the type that PostgreSQL has.
pub(super) fn bits(nonce: Nonce) -> i64 {
    nonce.0.cast_signed()
}

/// Longer than for ever is for ever; the statements keep sums within the type.
pub(super) fn micros(interval: Duration) -> i64 {
    i64::try_from(interval.as_micros()).unwrap_or(i64::MAX)
}

/// Longer than any that is meant: an instant of today and this are still a number.
pub(super) const INTERVAL_MAX: i64 = i64::MAX / 2;

/// Policies that are remembered: a gateway has dozens. With more they are looked at for longer than encoding one takes.
const NUMBERED_MAX: usize = 128;
