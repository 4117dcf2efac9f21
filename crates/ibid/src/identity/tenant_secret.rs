//! The secret that names tenants and principals by their credentials.

use bytes::Bytes;
use ibid_core::fingerprint::Secret;
use ibid_core::store::{Store, StoreError};

use crate::random::random;

/// Returns the store's tenant secret, made once: a digest under it can name a tenant by its credential, and a weak credential
/// can't be guessed from the name. Its id belongs into the identity ([`StoreIdentity::with_tenant_secret`]).
///
/// It is not a fingerprint secret. Those rotate, and with this one every tenant would get another name.
///
/// [`StoreIdentity::with_tenant_secret`]: super::StoreIdentity::with_tenant_secret
pub async fn tenant_secret(store: &dyn Store) -> Result<Secret, StoreError> {
    let kept = store.put_if_absent(SETTING, Bytes::copy_from_slice(&random::<SECRET_BYTES>())).await?;
    Secret::new(&kept).map_err(|error| StoreError::lasting(store.kind(), "read the tenant secret", error))
}

/// The name of the setting.
const SETTING: &str = "tenant secret";

/// As long as the digest that it keys: more adds nothing.
const SECRET_BYTES: usize = 32;
