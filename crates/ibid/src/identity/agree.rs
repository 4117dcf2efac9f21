//! Compares the identity of a starting process with the stored one, and refuses the start if they differ.

use std::time::Duration;

use ibid_core::store::{SetOutcome, Store};
use tokio::time::Instant;

use super::change::holds_live_records;
use super::setting::SETTING;
use super::{IdentityError, IdentityPhase, IdentitySetting, StoreIdentity};

/// The identity that a process started with.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    /// The setting as it was read or written.
    pub(crate) setting: IdentitySetting,
    /// Instant before that read or write was sent.
    pub(crate) read_at: Instant,
}

/// Refuses a store that a copy keeps closed.
pub(crate) async fn check_open(store: &dyn Store) -> Result<(), IdentityError> {
    let stored = store.setting(SETTING).await?;
    stored.map_or(Ok(()), |text| IdentitySetting::parse(&text)?.check_open())
}

/// Compares `ours` with the stored identity. Writes `ours` if none is stored or the stored one is retired. `valid_for` is
/// used only if `ours` is new to the store.
pub(crate) async fn agree(
    store: &dyn Store,
    ours: &StoreIdentity,
    valid_for: Duration,
) -> Result<Agreement, IdentityError> {
    loop {
        let read_at = Instant::now();
        let stored = store.setting(SETTING).await?;
        let next = match &stored {
            None => IdentitySetting::first(ours, valid_for),
            Some(text) => {
                let setting = IdentitySetting::parse(text)?;
                setting.check_open()?;
                let differences = setting.current.differences(ours);
                match setting.phase {
                    IdentityPhase::Active if differences.is_empty() => {
                        return Ok(Agreement { setting, read_at });
                    }
                    IdentityPhase::Active => return Err(IdentityError::Differs(differences)),
                    IdentityPhase::Retiring => return Err(IdentityError::Changing),
                    IdentityPhase::Retired if differences.is_empty() => setting.reactivate(),
                    IdentityPhase::Retired => {
                        check_tenant_source(store, &setting, ours).await?;
                        setting.succeeded_by(ours, valid_for)
                    }
                }
            }
        };
        let read_at = Instant::now();
        // If this loses, another process wrote first. The loop is unbounded, but each turn needs such a write, and a start
        // sees few of them.
        if store.compare_and_set(SETTING, stored, next.to_bytes()).await? == SetOutcome::Won {
            return Ok(Agreement { setting: next, read_at });
        }
    }
}

/// Refuses a different tenant source while keys of the old one are in use. The new id of a record cannot be computed from the
/// old one, so each of their retries would run again.
async fn check_tenant_source(
    store: &dyn Store,
    stored: &IdentitySetting,
    ours: &StoreIdentity,
) -> Result<(), IdentityError> {
    let is_same = stored.current.has_tenant_source_of(ours);
    if is_same || stored.is_abandoned || !holds_live_records(store).await? {
        return Ok(());
    }
    let source = |identity: &StoreIdentity| match identity.tenant_secret() {
        Some(secret) => format!("{} under the secret {secret}", identity.tenant()),
        None => identity.tenant().to_owned(),
    };
    Err(IdentityError::OtherTenant { stored: source(&stored.current), ours: source(ours) })
}
