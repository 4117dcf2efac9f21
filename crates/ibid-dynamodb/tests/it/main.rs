//! Tests of the DynamoDB store on DynamoDB Local.

mod bodies;
mod clock;
mod contract;
mod copy;
mod engine;
mod fixture;
mod lost_reply;
mod nodes;
mod open;
mod throttling;
mod unsent;
