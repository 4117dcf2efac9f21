//! A gateway agrees with its store on the identity of its records, or says why it can't.

use std::sync::Arc;

use ibid::engine::StartError;
use ibid::http::Routes;
use ibid::identity::{IdentityError, tenant_secret};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::Secret;
use ibid_core::store::{Store, StoreError};

use crate::config::Config;
use crate::output::Failure;

/// Starts the engine under the identity of the configuration. Returns it with the secret that tenants are named with.
pub(super) async fn start(
    config: &Config,
    routes: &Routes,
    store: Arc<dyn Store>,
) -> Result<(Ibid, Secret), Failure> {
    let failed = |error: StoreError| super::refused(config, &StartError::Store(error));
    let secret = tenant_secret(&*store).await.map_err(failed)?;
    let identity = routes.identity(&config.tenant.word()).with_tenant_secret(secret.id());
    let settings = Settings { identity, ..super::settings(config)? };
    let ibid = Ibid::start(store, settings).await.map_err(|error| super::refused(config, &error))?;
    Ok((ibid, secret))
}

/// Why a gateway does not start, and the way out.
pub(super) fn refused(error: &IdentityError) -> Failure {
    match error {
        IdentityError::Differs(_) => Failure::usage("this store was used with other identity settings")
            .because(error)
            .hint(
                "start with the settings of before; or let the store take the new ones with `ibid identity change`, \
                 which stops every node on it",
            ),
        IdentityError::Changing => Failure::no("the identity of this store is being changed")
            .because(error)
            .hint("wait until `ibid identity change` has ended; if it was stopped, run it again"),
        IdentityError::OtherTenant { .. } => Failure::usage("this store was used with another tenant source")
            .because(error)
            .hint(
                "wait until its records have expired; or run `ibid identity change --abandon`, which says how many \
                 keys could run again; or give this gateway a store of its own",
            ),
        other => Failure::world("cannot read the identity of this store")
            .because(other)
            .hint("use the ibid that wrote it, or a newer one"),
    }
}
