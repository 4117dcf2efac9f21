//! One transaction with the caller's rows.

pub(crate) mod all_inside;
pub(crate) mod inside;
pub(crate) mod statements;

pub use all_inside::BegunInside;
pub use inside::{Inside, TxError};
