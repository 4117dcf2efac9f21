//! placeholder
mod gateway;

fn main() {}
