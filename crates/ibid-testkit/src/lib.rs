//! placeholder

pub mod story;
