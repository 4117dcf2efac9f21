//! Tests of `keys list` and `keys show` against a store of three records.

use super::*;
use ibid_core::change::{HistoryKind, HistoryLine};
use ibid_core::fingerprint::SecretId;
use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::{ErrorCode, Flags, Nonce, RecordDetails, Version};
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::{BoxFuture, RecordCounts};
use std::sync::Arc;
use std::time::Duration;

/// Records in memory, filtered as the contract demands, with one history for all.
struct Shelf(Vec<StoredRecord>);

impl BrowseStore for Shelf {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        let bounds = filter.prefix.as_ref().map(IdPrefix::bounds);
        let fits = |stored: &&StoredRecord| {
            let record = &stored.record;
            filter.fits(record, stored.now)
                && bounds.is_none_or(|(low, high)| low <= record.id && record.id <= high)
                && filter.after.as_ref().is_none_or(|after| record.id.as_bytes()[..] > after.0[..])
        };
        let records = self.0.iter().filter(fits).take(filter.limit as usize + 1).cloned().collect();
        let cursor = |last: &StoredRecord| Cursor(last.record.id.as_bytes().to_vec().into());
        Box::pin(std::future::ready(Ok(Page::new(records, filter.limit, cursor))))
    }

    fn history(&self, _: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        let at = Timestamp::from_micros(60_000_000);
        let line = HistoryLine { at, what: HistoryKind::Lapse, detail: "after 60s".into() };
        Box::pin(async { Ok(vec![line]) })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(async { Ok(RecordCounts::default()) })
    }

    fn count_reapable(&self, _: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(async { Ok(ReapCount::default()) })
    }

    fn find_unknown_secret(&self, _: Vec<SecretId>) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(async { Ok(None) })
    }
}

/// A store whose listing always fails.
struct FailingStore;

impl BrowseStore for FailingStore {
    fn list(&self, _: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async { Err(StoreError::transient("sqlite", "list records", "disk I/O error")) })
    }
    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        EMPTY.history(id)
    }
    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        EMPTY.count()
    }
    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        EMPTY.count_reapable(target)
    }
    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        EMPTY.find_unknown_secret(known)
    }
}

static EMPTY: Shelf = Shelf(Vec::new());

fn stored_record(first: u8, second: u8, key: &str, state: State) -> StoredRecord {
    let mut bytes = [0x11; RecordId::LEN];
    (bytes[0], bytes[1], bytes[15]) = (0xab, first, second);
    let identity = Identity {
        tenant: Tenant::new("acme").unwrap(),
        operation: Operation { method: "POST".into(), path: "/payments".into() },
        key: Key::stored(key).unwrap(),
    };
    let completed = state == State::Completed;
    let at = |secs: i64| Timestamp::from_micros(secs * 1_000_000);
    StoredRecord {
        record: Arc::new(Record {
            id: RecordId::from_bytes(bytes),
            identity: Arc::new(identity),
            version: Version { count: 2, nonce: Nonce(0xfeed) },
            birth: Nonce(1),
            owner: Nonce(2),
            attempt: 1,
            state,
            flags: Flags { dead_letter: state == State::Unknown, ..Flags::default() },
            fingerprint: None,
            policy: Arc::new(Policy::default().with(|policy| policy.wait = Duration::from_secs(1))),
            point: 0,
            created_at: at(0),
            ran_at: Some(at(1)),
            completed_at: completed.then(|| at(2)),
            due_at: (!completed).then(|| at(60)),
            expires_at: completed.then(|| at(86402)),
            purge_at: completed.then(|| Timestamp::from_micros(i64::MAX)),
            note: RecordDetails {
                status: completed.then_some(201),
                last_error: (!completed).then_some(ErrorCode::TimedOut),
                ..RecordDetails::default()
            },
        }),
        response: None,
        now: at(100),
    }
}

fn shelf() -> Shelf {
    Shelf(vec![
        stored_record(0xcd, 1, "key-1", State::Completed),
        stored_record(0xcd, 2, "key-2", State::Unknown),
        stored_record(0xef, 3, "key-3", State::InProgress),
    ])
}

fn ask_list(store: &dyn BrowseStore, args: KeysListArgs) -> (Result<(), Failure>, String, String) {
    let (mut out, mut talk) = (Vec::new(), Vec::new());
    let limit = if args.limit == 0 { 100 } else { args.limit };
    let result = block_on(list(store, &KeysListArgs { limit, ..args }, &mut out, &mut talk));
    (result, String::from_utf8(out).unwrap(), String::from_utf8(talk).unwrap())
}

fn ask_show(id: &str, json: bool) -> (Result<(), Failure>, String) {
    let mut out = Vec::new();
    let args = KeysShowArgs { id: id.into(), json, ..KeysShowArgs::default() };
    let load = async |id: RecordId| Ok(shelf().0.into_iter().find(|stored| stored.record.id == id));
    let result = block_on(show(&shelf(), load, &args, &mut out));
    (result, String::from_utf8(out).unwrap())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn the_list_is_a_table_with_a_line_per_record() {
    let (result, out, talk) = ask_list(&shelf(), KeysListArgs::default());
    assert_eq!(result, Ok(()));
    assert_eq!(talk, "");
    let expected = "\
id        state                  outcome  status  attempt  tenant  operation       key    created                   expires
abcd1111  completed              success  201     1        acme    POST /payments  key-1  1970-01-01T00:00:00.000Z  1970-01-02T00:00:02.000Z
abcd1111  unknown (dead letter)  -        -       1        acme    POST /payments  key-2  1970-01-01T00:00:00.000Z  -
abef1111  in_progress            -        -       1        acme    POST /payments  key-3  1970-01-01T00:00:00.000Z  -
";
    assert_eq!(out, expected);
}

#[test]
fn a_truncated_list_says_how_to_continue() {
    let (_, out, talk) = ask_list(&shelf(), KeysListArgs { limit: 2, ..KeysListArgs::default() });
    assert_eq!(out.lines().count(), 3);
    let after = talk.trim_start_matches("there are more: `--after ").trim_end_matches("`\n").to_owned();
    assert_eq!(after.len(), 32, "{talk}");
    let (_, out, talk) = ask_list(&shelf(), KeysListArgs { after: Some(after), ..KeysListArgs::default() });
    assert!(out.contains("key-3") && !out.contains("key-2") && talk.is_empty(), "{out}{talk}");
}

#[test]
fn filters_are_passed_on_and_an_empty_list_prints_no_data() {
    let unknown =
        WhichArgs { state: Some("unknown".into()), key: Some("key-2".into()), ..WhichArgs::default() };
    let args = KeysListArgs { which: unknown, ..KeysListArgs::default() };
    assert_eq!(ask_list(&shelf(), args).1.lines().count(), 2);
    let which = WhichArgs { tenant: Some("other".into()), ..WhichArgs::default() };
    let (result, out, talk) =
        ask_list(&shelf(), KeysListArgs { which: which.clone(), ..KeysListArgs::default() });
    assert_eq!((result, out.as_str(), talk.as_str()), (Ok(()), "", "no record fits\n"));
    let args = KeysListArgs { which, json: true, ..KeysListArgs::default() };
    assert_eq!(ask_list(&shelf(), args).1, "[]\n");
}

#[test]
fn json_has_ids_in_full_and_times_in_rfc_3339() {
    let (_, out, _) = ask_list(&shelf(), KeysListArgs { json: true, ..KeysListArgs::default() });
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value[0]["id"].as_str().unwrap().len(), 32);
    assert_eq!(value[0]["created_at"], "1970-01-01T00:00:00.000Z");
    assert_eq!(value[0]["purge_at"], "never");
    assert_eq!(value[1]["dead_letter"], true);
    assert_eq!(value[1]["policy"]["wait"], "1s");
}

#[test]
fn a_state_or_cursor_that_is_none_is_asked_wrongly() {
    let which = WhichArgs { state: Some("unkown".into()), ..WhichArgs::default() };
    let args = KeysListArgs { which, ..KeysListArgs::default() };
    let failure = ask_list(&shelf(), args).0.unwrap_err();
    assert_eq!(failure.exit, crate::output::Exit::Usage);
    assert_eq!(failure.hint.unwrap(), "did you mean `unknown`?");
    let args = KeysListArgs { after: Some("xyz".into()), ..KeysListArgs::default() };
    assert_eq!(ask_list(&shelf(), args).0.unwrap_err().exit, crate::output::Exit::Usage);
}

#[test]
fn a_store_that_is_gone_is_the_worlds_failure() {
    let failure = ask_list(&FailingStore, KeysListArgs::default()).0.unwrap_err();
    assert_eq!(failure.exit, crate::output::Exit::World);
    assert_eq!(failure.cause.unwrap(), "could not list records in the sqlite store: disk I/O error");
}

#[test]
fn one_record_is_shown_with_its_history() {
    let (result, out) = ask_show("ABEF", false);
    assert_eq!(result, Ok(()));
    for line in [
        "state           in_progress",
        "operation       POST /payments",
        "key             key-3",
        "version         2:000000000000feed",
        "fingerprint     cleared",
        "lease until     1970-01-01T00:01:00.000Z",
        "last error      timed_out",
        "policy          wait = \"1s\"",
        "  1970-01-01T00:01:00.000Z  lapse  after 60s",
    ] {
        assert!(out.lines().any(|shown| shown.trim_end() == line), "{line}\n{out}");
    }
    let value: Value = serde_json::from_str(&ask_show("abef", true).1).unwrap();
    assert_eq!(value["history"][0]["what"], "lapse");
}

#[test]
fn an_id_that_fits_several_or_none_is_answered_no() {
    let (result, out) = ask_show("abcd", false);
    let failure = result.unwrap_err();
    assert_eq!(
        (failure.exit, failure.message.as_str()),
        (crate::output::Exit::No, "2 records begin with `abcd`")
    );
    assert!(out.contains("key-1") && out.contains("key-2") && !out.contains("key-3"));
    let (result, out) = ask_show("0000", false);
    assert_eq!(result.unwrap_err().exit, crate::output::Exit::No);
    assert_eq!(out, "");
    assert_eq!(ask_show("abc", false).0.unwrap_err().exit, crate::output::Exit::Usage);
}
