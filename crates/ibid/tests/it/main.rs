//! The integration tests of `ibid`, one binary: linking dominates with many.

mod http;
