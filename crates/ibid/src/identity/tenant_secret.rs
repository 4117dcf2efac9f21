//! The secret with which names of tenants and principals are computed from their credentials.

use bytes::Bytes;
use ibid_core::fingerprint::Secret;
use ibid_core::store::{Store, StoreError};

use crate::random::random;

/// Returns the store's tenant secret, and creates it on the first call. A digest under it can name a tenant by its credential,
/// and even a weak credential cannot be guessed from that name. The secret's id belongs into the identity
/// ([`StoreIdentity::with_tenant_secret`]).
///
/// It is not a fingerprint secret. Those rotate; if this one did, every tenant would get a different name.
///
/// # Errors
///
/// Fails if the store does not answer, or if the stored secret is not valid.
///
/// [`StoreIdentity::with_tenant_secret`]: super::StoreIdentity::with_tenant_secret
///
/// # Cancel safety
///
/// If the future is dropped midway, a new secret may be stored or not. The next call returns the one that is stored.
pub async fn tenant_secret(store: &dyn Store) -> Result<Secret, StoreError> {
    let secret = store.put_if_absent(SETTING, Bytes::copy_from_slice(&random::<SECRET_BYTES>())).await?;
    Secret::new(&secret)
        .map_err(|error| StoreError::lasting(store.facts().name, "read the tenant secret", error))
}

/// The name of the secret's setting in the store.
pub(crate) const SETTING: &str = "tenant secret";

/// Length of a new secret: as long as the digest that it keys. More would add nothing.
const SECRET_BYTES: usize = 32;
