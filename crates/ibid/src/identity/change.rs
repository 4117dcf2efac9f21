//! Lets an operator change the identity of a store: retire the stored one, wait until no process can still act on it, and
//! later end the lookup of previous ids.
//!
//! There is no list of running processes. Each process re-reads the setting and acts only on a recent read
//! (`Settings::identity_valid_for`). So waiting twice that long is enough, whichever processes run or are paused.

use std::time::Duration;

use ibid_core::change::StoredRecord;
use ibid_core::machine;
use ibid_core::store::{RecordFilter, SetOutcome, Store, StoreError};
use ibid_core::time::Timestamp;

use super::setting::SETTING;
use super::{IdentityError, IdentityPhase, IdentitySetting, PREVIOUS_MAX};

/// The identity of a store was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// No process has started on this store yet.
    #[error("the store has no identity yet: the first start writes its own")]
    NotSet,
    /// [`PREVIOUS_MAX`] previous identities are looked up already.
    #[error("the ids of {PREVIOUS_MAX} previous identities are looked up already")]
    TooManyPrevious,
    /// The identity is being changed or waits for its successor.
    #[error("the identity is {0}: start a process with the new identity first")]
    NotActive(&'static str),
    /// The stored identity can't be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The store did not answer.
    #[error("the store does not answer")]
    Store(#[from] StoreError),
}

/// The step that [`retire`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "only crates of this project use it")]
pub enum RetireWait {
    /// Waits this long for processes that have not read yet that the identity is being retired.
    ForReaders(Duration),
    /// Waits for transactions that were open in the database when the readers' time was over.
    ForTransactions,
}

/// The previous identities that are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgetReport {
    /// Previous identities that were forgotten.
    pub forgotten: usize,
    /// Previous identities that are still looked up.
    pub kept: usize,
    /// Records from before the last change.
    pub records: u64,
    /// Time by which the last of these records is deleted, if none is used again; `None` if one of them stays until it is
    /// settled.
    pub gone_by: Option<Timestamp>,
}

/// Reads the stored identity; `None` if no process has started on this store yet.
///
/// # Errors
///
/// Fails if the store does not answer, or if this version cannot read the stored text.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub async fn load_setting(store: &dyn Store) -> Result<Option<IdentitySetting>, IdentityError> {
    store.setting(SETTING).await?.map(|text| IdentitySetting::parse(&text)).transpose()
}

/// Retires the stored identity and returns once no process can act on it any more. The next process to start writes its own.
///
/// With `abandon`, that process may take the tenant from another source, under which no present record can be found.
/// `on_wait` is called with each step before it is waited for.
///
/// # Errors
///
/// Fails if the store has no identity yet or does not answer, or if [`PREVIOUS_MAX`] previous identities are looked up
/// already. Once the identity is retiring, call it again until it succeeds.
///
/// # Cancel safety
///
/// If it is dropped midway, the identity stays retiring: no process starts on the store until this is called again.
pub async fn retire(
    store: &dyn Store,
    abandon: bool,
    on_wait: impl FnMut(RetireWait),
) -> Result<IdentitySetting, ChangeError> {
    check_can_wait(store).await?;
    let retiring = update(store, |setting| {
        if setting.phase == IdentityPhase::Active && setting.previous.len() >= PREVIOUS_MAX {
            return Err(ChangeError::TooManyPrevious);
        }
        let phase = match setting.phase {
            IdentityPhase::Active => IdentityPhase::Retiring,
            phase => phase,
        };
        Ok(IdentitySetting { phase, is_abandoned: setting.is_abandoned || abandon, ..setting })
    })
    .await?;
    if retiring.phase == IdentityPhase::Retired {
        return Ok(retiring);
    }
    let retired_at = wait_for_processes(store, retiring.valid_for, on_wait).await?;
    update(store, |setting| match setting.phase {
        // Another operator's call may have finished first.
        IdentityPhase::Retiring => {
            Ok(IdentitySetting { phase: IdentityPhase::Retired, retired_at, ..setting })
        }
        IdentityPhase::Active | IdentityPhase::Retired => Ok(setting),
    })
    .await
}

/// Fails if [`wait_for_processes`] would fail, so that no setting is replaced in vain. A user of MySQL needs the privilege `process`
/// to see open transactions.
pub(crate) async fn check_can_wait(store: &dyn Store) -> Result<(), StoreError> {
    if let Some(sql) = store.sql() {
        let mark = sql.transaction_mark().await?;
        sql.is_settled_before(mark).await?;
    }
    latest_creation(store).await.map(drop)
}

/// Waits until no process can act on a setting that was replaced before the call. Returns an instant that is not before the
/// creation of any record; `None` if there is none.
pub(crate) async fn wait_for_processes(
    store: &dyn Store,
    valid_for: Duration,
    mut on_wait: impl FnMut(RetireWait),
) -> Result<Option<Timestamp>, StoreError> {
    // A process may have read the setting just before the write. It acts on that read for `valid_for`, counted from
    // before it sent the read. The second `valid_for` is for its last write to arrive.
    let wait = valid_for * 2;
    on_wait(RetireWait::ForReaders(wait));
    tokio::time::sleep(wait).await;
    wait_for_transactions(store, on_wait).await?;
    latest_creation(store).await
}

/// Ends the lookup of previous ids for each previous identity under which no remaining record was created.
///
/// # Errors
///
/// Fails if the identity is not active, or if the store does not answer.
///
/// # Cancel safety
///
/// One write at the end changes the setting. If the future is dropped before, nothing has changed; while it is sent, it may
/// be applied or not. Calling it again is safe.
pub async fn forget_previous(store: &dyn Store) -> Result<ForgetReport, ChangeError> {
    let setting = load_setting(store).await?.ok_or(ChangeError::NotSet)?;
    if setting.phase != IdentityPhase::Active {
        return Err(ChangeError::NotActive(setting.phase.name()));
    }
    let last = setting.previous.iter().filter_map(|previous| previous.until).max();
    let mut report = ForgetReport { forgotten: 0, kept: 0, records: 0, gone_by: last };
    let mut oldest: Option<Timestamp> = None;
    if let Some(last) = last {
        // Records created at that very instant belong to it.
        let until = last.after(Duration::from_micros(1));
        each_record(store, Some(until), |stored| {
            let record = &stored.record;
            report.records += 1;
            report.gone_by = report.gone_by.zip(record.purge_at).map(|(one, other)| one.max(other));
            oldest = Some(oldest.map_or(record.created_at, |at| at.min(record.created_at)));
            true
        })
        .await?;
    }
    let is_needed =
        |until: Option<Timestamp>| oldest.zip(until).is_some_and(|(oldest, until)| oldest <= until);
    let before = setting.previous.len();
    let changed = update(store, |mut setting| {
        setting.previous.retain(|previous| is_needed(previous.until));
        Ok(setting)
    })
    .await?;
    report.kept = changed.previous.len();
    report.forgotten = before.saturating_sub(report.kept);
    Ok(report)
}

/// Counts the records whose keys are in use. Under another tenant source, each of these keys could run again.
///
/// # Errors
///
/// Fails if the store does not answer.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub async fn live_records(store: &dyn Store) -> Result<u64, StoreError> {
    let mut count = 0;
    let counts = |stored: &StoredRecord| {
        count += u64::from(machine::holds_key(&stored.record, stored.now));
        true
    };
    each_record(store, None, counts).await?;
    Ok(count)
}

/// Returns whether the key of any record is in use.
pub(super) async fn holds_live_records(store: &dyn Store) -> Result<bool, StoreError> {
    let mut is_live = false;
    let look = |stored: &StoredRecord| {
        is_live = machine::holds_key(&stored.record, stored.now);
        !is_live
    };
    each_record(store, None, look).await?;
    Ok(is_live)
}

/// Calls `each` with every record, or with those created before an instant, until it returns `false`.
async fn each_record(
    store: &dyn Store,
    created_before: Option<Timestamp>,
    mut each: impl FnMut(&StoredRecord) -> bool,
) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        // Not filtered by the store: a page that matches few records could take longer than a store lets a list run.
        let page = store
            .require_browse()?
            .list(RecordFilter::default().with(|filter| (filter.after, filter.limit) = (after, PAGE)))
            .await?;
        let is_asked_for =
            |stored: &&StoredRecord| created_before.is_none_or(|before| stored.record.created_at < before);
        if !page.items.iter().filter(is_asked_for).all(&mut each) {
            return Ok(());
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Returns an instant of the store's clock that is not before any record's creation; `None` if there is no record.
async fn latest_creation(store: &dyn Store) -> Result<Option<Timestamp>, StoreError> {
    let some = store.require_browse()?.list(RecordFilter::default().with(|filter| filter.limit = 1)).await?;
    Ok(some.items.first().map(|stored| stored.now))
}

/// Waits for transactions in which a process may have reserved a key that no other transaction sees yet.
///
/// T2 (old identity) reserves K inside its transaction and is about to commit; T1 (new identity) looks up K's old id, sees
/// nothing, reserves the new id and runs. Then T2's commit would be the second execution. T2 sends no commit once its last
/// read of the identity is `valid_for` old, and a commit that it sent before has ended when this returns.
async fn wait_for_transactions(
    store: &dyn Store,
    mut on_wait: impl FnMut(RetireWait),
) -> Result<(), StoreError> {
    let Some(sql) = store.sql() else { return Ok(()) };
    let mark = sql.transaction_mark().await?;
    let mut has_called = false;
    while !sql.is_settled_before(mark).await? {
        if !std::mem::replace(&mut has_called, true) {
            on_wait(RetireWait::ForTransactions);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Changes the setting by compare-and-set, deciding again after each lost race.
async fn update(
    store: &dyn Store,
    change: impl Fn(IdentitySetting) -> Result<IdentitySetting, ChangeError>,
) -> Result<IdentitySetting, ChangeError> {
    // Unbounded, but each lost race means that another operator or a starting process has written, and there are few of
    // them.
    loop {
        let text = store.setting(SETTING).await?.ok_or(ChangeError::NotSet)?;
        let setting = IdentitySetting::parse(&text)?;
        setting.check_open()?;
        let next = change(setting)?;
        if store.compare_and_set(SETTING, Some(text), next.to_bytes()).await? == SetOutcome::Won {
            return Ok(next);
        }
    }
}

/// Number of records per page.
const PAGE: u32 = 1000;

/// Pause between two checks for open transactions. It is short, because an operator waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);
