//! The time limits of a kind of effect.

use std::time::Duration;

use ibid_core::effect::EffectRules;

/// Time limits of one kind of effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerLimits {
    /// Longest time for a call, for a verification, and for writing the handler's rows.
    pub timeout: Duration,
    /// The shortest lease in the rules of these effects. A call under a shorter lease is cancelled when that lease ends.
    pub lease: Duration,
}

impl HandlerLimits {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut HandlerLimits)) -> HandlerLimits {
        change(&mut self);
        self
    }
}

/// The limits of a worker that sets none: calls of half a minute, under the default lease.
impl Default for HandlerLimits {
    fn default() -> HandlerLimits {
        HandlerLimits { timeout: TIMEOUT, lease: EffectRules::default().lease() }
    }
}

/// Default timeout of a call: as long as most HTTP clients wait, and half of the default lease. The other half is for
/// writing the result.
const TIMEOUT: Duration = Duration::from_secs(30);
