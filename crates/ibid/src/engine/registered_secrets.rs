//! The fingerprint secrets that records of a store may name, kept as a setting, so that a start need not search the records.

use bytes::Bytes;
use ibid_core::fingerprint::SecretId;
use ibid_core::store::{SetOutcome, Store, StoreError};

/// Registers the secrets of this process at its start. Returns a registered secret that this process lacks and that records still
/// name.
///
/// The secrets are registered before the first record is written under one of them. Records are searched only if a
/// registered secret is not among `known`: an operator has taken it out of the configuration. If no record names it any
/// more, it is taken off the list.
pub(super) async fn agree(store: &dyn Store, known: Vec<SecretId>) -> Result<Option<SecretId>, StoreError> {
    loop {
        let stored = store.setting(SETTING).await?;
        let registered = stored.as_deref().map(parse).unwrap_or_default();
        let missing = registered.iter().find(|id| !known.contains(id));
        if missing.is_none() && known.iter().all(|id| registered.contains(id)) {
            return Ok(None);
        }
        if let Some(missing) = missing {
            tracing::warn!(secret = %missing, "a registered secret is not configured; searching records that name it");
            let named = match store.browse() {
                Some(browse) => browse.find_unknown_secret(known.clone()).await?,
                // Without a way to search, a registered secret counts as needed.
                None => Some(*missing),
            };
            if named.is_some() {
                return Ok(named);
            }
        }
        // On a lost race another process has registered its own: read the list again.
        if let SetOutcome::Won = store.compare_and_set(SETTING, stored, print(&known)).await? {
            return Ok(None);
        }
    }
}

/// Puts the secret that this process writes with back on the list, if it was taken off.
///
/// T1 (a running node) has secret B and has not written under it yet; T2 (a node that starts) has only A, finds no record under B, and
/// takes B off the list; T1 writes under B; T3 (another start with A) finds a list without B and does not search the records. It
/// would start, and refuse the retries of T1's requests. So each node looks at the list when it reads the identity, and T3 is
/// refused from then on.
pub(super) async fn restore(store: &dyn Store, written_with: SecretId) -> Result<(), StoreError> {
    for _ in 0..RESTORE_TRIES_MAX {
        let stored = store.setting(SETTING).await?;
        let mut registered = stored.as_deref().map(parse).unwrap_or_default();
        if registered.contains(&written_with) {
            return Ok(());
        }
        tracing::warn!(secret = %written_with, "another process took this secret off the list; putting it back");
        registered.insert(0, written_with);
        if let SetOutcome::Won = store.compare_and_set(SETTING, stored, print(&registered)).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// One secret id per line.
fn print(secrets: &[SecretId]) -> Bytes {
    secrets.iter().map(|id| format!("{id}\n")).collect::<String>().into()
}

/// Parses a list; a line that is no secret id is passed over.
fn parse(text: &[u8]) -> Vec<SecretId> {
    String::from_utf8_lossy(text).lines().filter_map(|line| line.parse().ok()).collect()
}

/// Times that the list is read again after a lost race. Only starts write it, and the next look comes in some seconds.
const RESTORE_TRIES_MAX: u32 = 4;

/// Name of the setting.
pub(crate) const SETTING: &str = "secrets";
