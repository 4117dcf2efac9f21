//! The rules of a route, and the types of their fields.
//!
//! ```
//! use ibid::policy::{OnLapse, Policy};
//!
//! // Handlers whose work may run again: a lapsed lease leads to a retry instead of an unknown outcome.
//! let policy = Policy::payments().with(|policy| policy.on_lapse = OnLapse::Retry);
//! ```

pub use ibid_core::fingerprint::{BodyRule, Pointer, PointerError, Recipe};
pub use ibid_core::forward_key::ForwardKey;
pub use ibid_core::key_source::{KeyFrom, KeySource, KeySourceError};
pub use ibid_core::policy::{
    AfterExpiry, AnswerRule, BindRule, InFlight, KeyRule, OnLapse, OnServerError, PathRule, Policy,
    PolicyError, Profile, Reconcile,
};
pub use ibid_core::proof::{Hop, NotExecutedWhen};
pub use ibid_core::scope::ScopeRule;
