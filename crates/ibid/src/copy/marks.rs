//! The marks of a copy in the identity settings of its two stores, and every step from one mark to the next.
//!
//! | | source | target |
//! | --- | --- | --- |
//! | before | open | no identity |
//! | [`join`], [`TargetMark::take_over`] | open | filling |
//! | [`close_source`], [`note_retired`] | closed | filling |
//! | [`open_target`] | closed | opened |
//! | [`note_moved`] | closed, moved | opened |
//! | [`cancel_target`] | closed | cancelled |
//! | [`reopen_source`] | open | cancelled |
//!
//! Invariants: the source's mark is taken away only while the target is `cancelled` under the same id; `opened` and `cancelled`
//! are final; a target is opened only by a compare-and-set from `filling`. So a source under an opened target is closed.

use bytes::Bytes;
use ibid_core::hex;
use ibid_core::store::copy::{ClockShift, SettingFence};
use ibid_core::store::{SetOutcome, Store, StoreError};
use ibid_core::time::Timestamp;

use super::retry::retry;
use super::{CopyEnd, CopyError, CopyReport, rows, transfer};
use crate::engine::{SECRET_SETTING, SECRETS_SETTING};
use crate::identity::{
    CopyMark, CopyProgress, CopyRole, IdentityPhase, IdentitySetting, SETTING, TENANT_SECRET_SETTING,
    TargetPhase,
};
use crate::random::random;

/// The setting of a source that this copy has closed.
pub(super) struct SourceMark(IdentitySetting);

impl SourceMark {
    pub(super) fn is_retired(&self) -> bool {
        self.0.phase == IdentityPhase::Retired
    }

    pub(super) fn valid_for(&self) -> std::time::Duration {
        self.0.valid_for
    }

    fn was_active(&self) -> bool {
        matches!(
            &self.0.copy,
            Some(CopyMark { role: CopyRole::Source { before: IdentityPhase::Active, .. }, .. })
        )
    }
}

/// The setting of a target that this copy fills, as it is stored.
pub(super) struct TargetMark {
    text: Bytes,
    setting: IdentitySetting,
    id: String,
    progress: CopyProgress,
}

impl TargetMark {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn progress(&self) -> &CopyProgress {
        &self.progress
    }

    /// Returns the fence of a batch: it holds while no other process has moved the copy on or ended it.
    pub(super) fn fence(&self) -> SettingFence {
        SettingFence { name: SETTING, value: self.text.clone() }
    }

    /// Returns whether no other process has moved this copy on or ended it.
    pub(super) async fn is_held(&self, target: &CopyEnd) -> Result<bool, StoreError> {
        Ok(target.store.setting(SETTING).await?.as_ref() == Some(&self.text))
    }

    /// Fails if this copy was moved on or ended by another process.
    pub(super) async fn check_held(&self, source: &CopyEnd, target: &CopyEnd) -> Result<(), CopyError> {
        check_filling(source, target, &self.id).await?;
        match retry(async || self.is_held(target).await).await? {
            true => Ok(()),
            false => Err(CopyError::AnotherProcess),
        }
    }

    /// Makes this process the one that copies. Fails if another one has written meanwhile.
    ///
    /// T1 and T2 continue the same copy and read a page, between which a row changes; T2 stores its rows; T1 stores older ones over
    /// them; T2 notes its rows. With a mark for each process, T1's batch is refused.
    pub(super) async fn take_over(&mut self, source: &CopyEnd, target: &CopyEnd) -> Result<(), CopyError> {
        self.write_progress(source, target, |progress| progress.holder = hex::encode(&random::<16>())).await
    }

    /// Writes how far the copy has come. Fails if another process has written meanwhile.
    pub(super) async fn write_progress(
        &mut self,
        source: &CopyEnd,
        target: &CopyEnd,
        change: impl FnOnce(&mut CopyProgress),
    ) -> Result<(), CopyError> {
        let mut next = self.progress.clone();
        change(&mut next);
        let mut setting = self.setting.clone();
        if let Some(CopyMark { role: CopyRole::Target { progress, .. }, .. }) = &mut setting.copy {
            *progress = next.clone();
        }
        let text = setting.to_bytes();
        match replace(&*target.store, SETTING, Some(&self.text), &text).await? {
            SetOutcome::Won => {
                (self.text, self.setting, self.progress) = (text, setting, next);
                Ok(())
            }
            SetOutcome::Lost(_) => {
                self.check_held(source, target).await?;
                Err(CopyError::AnotherProcess)
            }
        }
    }

    /// Returns the rows that were copied.
    pub(super) fn report(&self, was_open: bool) -> CopyReport {
        report(&self.progress, was_open)
    }
}

/// The result of [`join`].
pub(super) enum JoinOutcome {
    /// The target waits to be filled.
    Filling(Box<TargetMark>),
    /// The target was opened before.
    Ended(CopyReport),
}

/// Marks an empty target as being filled from `source`, or finds that mark.
pub(super) async fn join(source: &CopyEnd, target: &CopyEnd) -> Result<JoinOutcome, CopyError> {
    let (_, from) = read(&*source.store).await?.ok_or(CopyError::SourceUnused)?;
    if let Some(mark @ CopyMark { role: CopyRole::Target { .. }, .. }) = &from.copy
        && mark.closes()
    {
        return Err(CopyError::SourceBusy(Box::new(mark.clone())));
    }
    let own_id = store_id(&*source.store).await?;
    loop {
        let Some((text, setting)) = read(&*target.store).await? else {
            if let Some(mark) = source_mark(&from) {
                // It was closed for another target, or its target was emptied.
                return Err(CopyError::OtherTarget(Box::new(mark.clone())));
            }
            transfer::check_empty(target).await?;
            let role = CopyRole::Target {
                from: own_id.clone(),
                source_url: source.display_url.clone(),
                phase: TargetPhase::Filling,
                progress: CopyProgress::default(),
            };
            let mark = CopyMark { id: hex::encode(&random::<16>()), role };
            let first = IdentitySetting { copy: Some(mark), ..from.clone() };
            // If this loses, another copy was first, or a process has started on the target.
            let _ = replace(&*target.store, SETTING, None, &first.to_bytes()).await?;
            continue;
        };
        return join_marked(source, &from, &own_id, text, setting).await;
    }
}

async fn join_marked(
    source: &CopyEnd,
    from: &IdentitySetting,
    own_id: &str,
    text: Bytes,
    setting: IdentitySetting,
) -> Result<JoinOutcome, CopyError> {
    let Some(mark) = &setting.copy else { return Err(CopyError::TargetUsed) };
    let CopyRole::Target { from: other_id, phase, progress, .. } = &mark.role else {
        return Err(CopyError::TargetBusy(Box::new(mark.clone())));
    };
    let closed_for = source_mark(from);
    if let Some(other) = closed_for.filter(|other| other.id != mark.id) {
        return Err(CopyError::OtherTarget(Box::new(other.clone())));
    }
    if other_id != own_id {
        return Err(CopyError::TargetBusy(Box::new(mark.clone())));
    }
    match (phase, closed_for.is_some()) {
        (TargetPhase::Filling, _) => {
            let (id, progress) = (mark.id.clone(), progress.clone());
            Ok(JoinOutcome::Filling(Box::new(TargetMark { text, setting, id, progress })))
        }
        (TargetPhase::Opened, true) => {
            note_moved(source, &mark.id).await?;
            Ok(JoinOutcome::Ended(report(progress, true)))
        }
        (TargetPhase::Cancelled, true) => {
            // The cancellation was stopped before it opened the source.
            reopen_source(source, &mark.id).await?;
            Err(CopyError::Cancelled)
        }
        (TargetPhase::Opened | TargetPhase::Cancelled, false) => {
            Err(CopyError::TargetBusy(Box::new(mark.clone())))
        }
    }
}

/// Closes the source for this copy. From the next read of the setting on, no process begins or does anything on it.
pub(super) async fn close_source(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &TargetMark,
) -> Result<SourceMark, CopyError> {
    let closed = update(&*source.store, |setting| {
        match source_mark(&setting) {
            Some(mark) if mark.id == to.id => return Ok(setting),
            Some(mark) => return Err(CopyError::SourceBusy(Box::new(mark.clone()))),
            None => {}
        }
        let role = CopyRole::Source { to: target.display_url.clone(), moved: false, before: setting.phase };
        let copy = Some(CopyMark { id: to.id.clone(), role });
        // Also where it was retired before: processes without an identity have used it until now.
        Ok(IdentitySetting { phase: IdentityPhase::Retiring, copy, ..setting })
    })
    .await?;
    // T1 (this copy) marks the target and is stopped; T2 cancels, and finds no source to open; T1 closes the source. Only T1
    // knows of it now, and opens it again.
    check_filling(source, target, &to.id).await?;
    Ok(SourceMark(closed))
}

/// Notes that no process can act on the source any more.
pub(super) async fn note_retired(
    source: &CopyEnd,
    from: SourceMark,
    retired_at: Option<Timestamp>,
) -> Result<SourceMark, CopyError> {
    let id = source_mark(&from.0).map(|mark| mark.id.clone());
    let retired = update(&*source.store, |setting| match source_mark(&setting) {
        Some(mark) if Some(&mark.id) == id.as_ref() => {
            let retired_at = setting.retired_at.max(retired_at);
            Ok(IdentitySetting { phase: IdentityPhase::Retired, retired_at, ..setting })
        }
        _ => Err(CopyError::Cancelled),
    });
    Ok(SourceMark(retired.await?))
}

/// Opens the target: the last step, by one compare-and-set on its mark.
pub(super) async fn open_target(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &TargetMark,
    from: &SourceMark,
    shift: ClockShift,
) -> Result<(), CopyError> {
    // A copy changes no identity. One that was being changed is retired in the target: no process acts on it any more.
    let mut opened = if from.was_active() { from.0.reactivate() } else { from.0.clone() };
    opened.copy.clone_from(&to.setting.copy);
    if let Some(CopyMark { role: CopyRole::Target { phase, .. }, .. }) = &mut opened.copy {
        *phase = TargetPhase::Opened;
    }
    opened.retired_at = opened.retired_at.map(|at| shift.apply(at));
    for previous in &mut opened.previous {
        previous.until = previous.until.map(|at| shift.apply(at));
    }
    match replace(&*target.store, SETTING, Some(&to.text), &opened.to_bytes()).await? {
        SetOutcome::Won => Ok(()),
        SetOutcome::Lost(_) => {
            to.check_held(source, target).await?;
            Err(CopyError::AnotherProcess)
        }
    }
}

/// Notes in the source that its target was opened.
pub(super) async fn note_moved(source: &CopyEnd, id: &str) -> Result<(), CopyError> {
    let noted = update(&*source.store, |mut setting| {
        if let Some(CopyMark { id: own, role: CopyRole::Source { moved, .. } }) = &mut setting.copy
            && own == id
        {
            *moved = true;
        }
        Ok(setting)
    });
    noted.await.map(drop)
}

/// Cancels the copy by a compare-and-set on the target's mark, and returns its id. From then on it can't be ended.
pub(super) async fn cancel_target(source: &CopyEnd, target: &CopyEnd) -> Result<String, CopyError> {
    let (_, from) = read(&*source.store).await?.ok_or(CopyError::SourceUnused)?;
    let closed_for = source_mark(&from);
    if let Some(CopyMark { role: CopyRole::Source { moved: true, .. }, .. }) = closed_for {
        return Err(CopyError::Ended);
    }
    let own_id = store_id(&*source.store).await?;
    loop {
        let stored = read(&*target.store).await?;
        let mark = stored.as_ref().and_then(|(_, setting)| setting.copy.as_ref());
        let ours = mark.filter(|mark| match closed_for {
            // Only this target's mark tells that the copy can't end any more.
            Some(closed_for) => mark.id == closed_for.id,
            None => matches!(&mark.role, CopyRole::Target { from, .. } if *from == own_id),
        });
        let (Some((text, setting)), Some(mark)) = (&stored, ours) else {
            return Err(
                closed_for.map_or(CopyError::NoCopy, |mark| CopyError::OtherTarget(Box::new(mark.clone())))
            );
        };
        let id = mark.id.clone();
        let mut cancelled = setting.clone();
        match &mut cancelled.copy {
            Some(CopyMark { role: CopyRole::Target { phase: TargetPhase::Opened, .. }, .. }) => {
                return Err(CopyError::Ended);
            }
            Some(CopyMark { role: CopyRole::Target { phase, .. }, .. }) => *phase = TargetPhase::Cancelled,
            _ => return Err(CopyError::NoCopy),
        }
        // If this loses, the copy has moved on meanwhile, or has ended. A copy writes a few times a second.
        let set = replace(&*target.store, SETTING, Some(text), &cancelled.to_bytes()).await?;
        if set == SetOutcome::Won {
            return Ok(id);
        }
    }
}

/// Opens the source again, if it is closed for the copy `id`. The caller has seen that the target is cancelled under that id.
pub(super) async fn reopen_source(source: &CopyEnd, id: &str) -> Result<(), CopyError> {
    let reopened = update(&*source.store, |setting| {
        let Some(CopyMark { id: own, role: CopyRole::Source { before, .. } }) = &setting.copy else {
            return Ok(setting);
        };
        let reopened = match before {
            _ if own != id => return Ok(setting),
            // The identity is the same as before, so processes that still run may continue, and none has to be waited for.
            IdentityPhase::Active => setting.reactivate(),
            // It was being changed, and waits for its successor as before.
            phase => IdentitySetting { phase: *phase, ..setting.clone() },
        };
        Ok(IdentitySetting { copy: None, ..reopened })
    });
    reopened.await.map(drop)
}

/// Copies the settings that every process on the store must agree on. The target is closed, so no process uses what it replaces:
/// a start that was refused may have drawn other secrets.
///
/// T1 (this copy) is stopped here; T2 opens the target, where a process registers a secret; T1 wakes up. So a value is read before
/// the mark is, and T1's compare-and-set finds another one.
pub(super) async fn copy_settings(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &TargetMark,
) -> Result<(), CopyError> {
    for name in COPIED_SETTINGS {
        let Some(value) = load(&*source.store, name).await? else { continue };
        let before = load(&*target.store, name).await?;
        to.check_held(source, target).await?;
        if let SetOutcome::Lost(_) = replace(&*target.store, name, before.as_ref(), &value).await? {
            return Err(CopyError::AnotherProcess);
        }
    }
    Ok(())
}

/// Returns whether the source is closed for this copy.
pub(super) async fn is_source_closed(source: &CopyEnd, to: &TargetMark) -> Result<bool, CopyError> {
    let stored = read(&*source.store).await?;
    Ok(stored.is_some_and(|(_, from)| source_mark(&from).is_some_and(|mark| mark.id == to.id)))
}

/// Fails unless the target is being filled under this id. If the copy was cancelled, opens the source again.
async fn check_filling(source: &CopyEnd, target: &CopyEnd, id: &str) -> Result<(), CopyError> {
    let stored = read(&*target.store).await?;
    match stored.and_then(|(_, setting)| setting.copy) {
        Some(CopyMark { id: own, role: CopyRole::Target { phase, .. } }) if own == id => match phase {
            TargetPhase::Filling => Ok(()),
            TargetPhase::Opened => Err(CopyError::AnotherProcess),
            TargetPhase::Cancelled => {
                reopen_source(source, id).await?;
                Err(CopyError::Cancelled)
            }
        },
        Some(mark) => Err(CopyError::TargetBusy(Box::new(mark))),
        None => Err(CopyError::TargetUsed),
    }
}

fn source_mark(setting: &IdentitySetting) -> Option<&CopyMark> {
    setting.copy.as_ref().filter(|mark| matches!(mark.role, CopyRole::Source { .. }))
}

fn report(progress: &CopyProgress, was_open: bool) -> CopyReport {
    CopyReport {
        rows: rows::name_parts(&progress.parts),
        left_behind: 0,
        shift_us: progress.shift_us.unwrap_or_default(),
        was_open,
    }
}

/// Reads the setting, as it is stored and as it is meant.
async fn read(store: &dyn Store) -> Result<Option<(Bytes, IdentitySetting)>, CopyError> {
    let Some(text) = load(store, SETTING).await? else { return Ok(None) };
    let setting = IdentitySetting::parse(&text)?;
    Ok(Some((text, setting)))
}

/// Changes the setting by compare-and-set, deciding again after each lost race.
async fn update(
    store: &dyn Store,
    change: impl Fn(IdentitySetting) -> Result<IdentitySetting, CopyError>,
) -> Result<IdentitySetting, CopyError> {
    // Unbounded, but each lost race means that another operator or a starting process has written, and there are few of them.
    loop {
        let text = load(store, SETTING).await?.ok_or(CopyError::SourceUnused)?;
        let next = change(IdentitySetting::parse(&text)?)?;
        if replace(store, SETTING, Some(&text), &next.to_bytes()).await? == SetOutcome::Won {
            return Ok(next);
        }
    }
}

async fn load(store: &dyn Store, name: &str) -> Result<Option<Bytes>, CopyError> {
    retry(async || store.setting(name).await).await
}

/// Sets `name` to `value` where its value is `expected`. A try whose reply was lost is repeated: a setting that has `value` already
/// counts as won.
async fn replace(
    store: &dyn Store,
    name: &str,
    expected: Option<&Bytes>,
    value: &Bytes,
) -> Result<SetOutcome, CopyError> {
    retry(async || store.compare_and_set(name, expected.cloned(), value.clone()).await).await
}

/// Returns the id of a store, drawn when it is first a source. A target names its source by it.
async fn store_id(store: &dyn Store) -> Result<String, CopyError> {
    let id = Bytes::from(hex::encode(&random::<16>()));
    let id = retry(async || store.put_if_absent(STORE_ID, id.clone()).await).await?;
    Ok(String::from_utf8_lossy(&id).into_owned())
}

/// The settings that are copied, besides the identity.
const COPIED_SETTINGS: [&str; 3] = [SECRET_SETTING, SECRETS_SETTING, TENANT_SECRET_SETTING];

/// Name of the setting with a store's id. It is not copied.
const STORE_ID: &str = "store id";
