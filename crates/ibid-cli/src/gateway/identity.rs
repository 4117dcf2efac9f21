//! Starts the engine under the store's identity settings, or explains why the two disagree.

use std::sync::Arc;

use ibid::Ibid;
use ibid::engine::StartError;
use ibid::http::Routes;
use ibid::identity::{IdentityError, tenant_secret};
use ibid_core::fingerprint::Secret;
use ibid_core::store::{Store, StoreError};

use crate::commands::copy::explain_closed;
use crate::config::Config;
use crate::front::open_front;
use crate::output::Failure;

/// Starts the engine under the identity of the configuration.
///
/// Returns it with the secret under which tenant names are derived from credentials.
pub(super) async fn start(
    config: &Config,
    routes: &Routes,
    store: Arc<dyn Store>,
) -> Result<(Ibid, Secret), Failure> {
    let failed = |error: StoreError| super::start_failure(config, &StartError::Store(error));
    let secret = tenant_secret(&*store).await.map_err(failed)?;
    let identity = routes.identity(&config.tenant.word()).with_tenant_secret(secret.id());
    let front = match &config.front {
        Some(front) => Some(open_front(front, &*store).await?),
        None => None,
    };
    let settings =
        super::settings(config)?.with(|settings| (settings.identity, settings.front) = (identity, front));
    let ibid = Ibid::start(store, settings).await.map_err(|error| super::start_failure(config, &error))?;
    Ok((ibid, secret))
}

/// Returns the message for a gateway that the store's identity keeps from starting, with a hint on how to proceed.
pub(super) fn identity_failure(error: &IdentityError) -> Failure {
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
                 keys could run again; or give this gateway a separate store",
            ),
        IdentityError::Closed(mark) => explain_closed(mark),
        other => Failure::world("cannot read the identity of this store")
            .because(other)
            .hint("use the ibid that wrote it, or a newer one"),
    }
}
