//! `ibid-ledger` on real stores.

mod dead_letters;
