//! The meaning of Redis' errors for callers. Only this file reads error codes.

use ibid_core::store::StoreError;
use redis::RedisError;

use super::NAME;

/// A call that failed, by what the caller may do.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was written, and the same call may succeed later.
    Unwritten(Box<dyn std::error::Error + Send + Sync>),
    /// Nothing was written, because nothing may begin now: the server's memory is full, or it became too weak.
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// The call was not sent, because no server with these settings would take it.
    TooLarge(Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke or the reply did not come in time: the script may have run.
    Ambiguous(RedisError),
    /// The server refuses the call permanently.
    Lasting(Box<dyn std::error::Error + Send + Sync>),
}

/// The sender's next step after an error.
pub(super) enum Reaction {
    /// Send the script's text: the server does not know its digest.
    SendText,
    /// Send to this node, which owns the slot now.
    Follow(String),
    /// Send to this node, once, while the slot moves to it.
    Ask(String),
    /// Wait: a part of the keys has moved.
    Wait,
    /// The call has failed.
    Fail(Failure),
}

impl Reaction {
    /// Returns what to do about an error. The script did not run, except where the failure says so.
    pub(super) fn to(error: RedisError) -> Reaction {
        let redirect = error.redirect_node().map(|(address, _)| address.to_owned());
        match (error.code(), redirect) {
            (Some("NOSCRIPT"), _) => Reaction::SendText,
            (Some("MOVED"), Some(address)) => Reaction::Follow(address),
            (Some("ASK"), Some(address)) => Reaction::Ask(address),
            (Some("TRYAGAIN"), _) => Reaction::Wait,
            (Some("OOM"), _) => Reaction::Fail(Failure::Refused(Box::new(error))),
            (Some(code), _) if REFUSED_FOR_NOW.contains(&code) => {
                Reaction::Fail(Failure::Unwritten(Box::new(error)))
            }
            (Some(_), _) => Reaction::Fail(Failure::Lasting(Box::new(error))),
            (None, _) => Reaction::Fail(Failure::Ambiguous(error)),
        }
    }
}

impl Failure {
    /// Creates a failure of a call that was not sent.
    pub(super) fn unsent(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure::Unwritten(why.into())
    }

    /// Creates the failure of a reply that is not what its script returns.
    pub(super) fn reply() -> Failure {
        Failure::Lasting("the server's reply is not that of the script".into())
    }

    /// Returns the cause, for log lines.
    pub(super) fn source(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Failure::Unwritten(why)
            | Failure::Refused(why)
            | Failure::TooLarge(why)
            | Failure::Lasting(why) => &**why,
            Failure::Ambiguous(why) => why,
        }
    }

    /// Returns the error as the caller of a store sees it.
    pub(super) fn into_store_error(self, op: &'static str) -> StoreError {
        match self {
            Failure::Unwritten(why) => StoreError::transient(NAME, op, why).unwritten(),
            Failure::Refused(why) => StoreError::no_room(NAME, op, why),
            Failure::TooLarge(why) => StoreError::lasting(NAME, op, why).unwritten(),
            Failure::Ambiguous(why) => StoreError::transient(NAME, op, why),
            // A script that failed midway has written something, perhaps.
            Failure::Lasting(why) => StoreError::lasting(NAME, op, why),
        }
    }
}

/// Returns whether an error shows that the server follows another one now.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// Returns whether an error shows that another server of the cluster has the key, or is getting it.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

/// Returns whether an error shows that the cluster is down, or that none of its servers has the slot.
pub(super) fn is_down(error: &RedisError) -> bool {
    error.code() == Some("CLUSTERDOWN")
}

/// Codes of a server that refuses a script before it runs, and may take it in a moment: it starts, is busy, follows another
/// server, could not save, lacks replicas, or is in a cluster that is not complete.
const REFUSED_FOR_NOW: [&str; 7] =
    ["LOADING", "BUSY", "READONLY", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_tells_whether_anything_was_written() {
        let error = |code: &str| {
            let error = redis::make_extension_error(code.to_owned(), Some("why".to_owned()));
            match Reaction::to(error) {
                Reaction::Fail(failure) => {
                    let error = failure.into_store_error("test");
                    Some((error.is_transient(), error.is_unwritten(), error.is_unsent()))
                }
                _ => None,
            }
        };
        for code in REFUSED_FOR_NOW {
            assert_eq!(error(code), Some((true, true, false)), "{code}");
        }
        assert_eq!(error("OOM"), Some((true, true, true)), "a full server is no outage");
        for code in ["ERR", "WRONGTYPE", "CROSSSLOT", "NOPERM"] {
            assert_eq!(error(code), Some((false, false, false)), "{code}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let Reaction::Fail(failure) = Reaction::to(broken) else { panic!("it fails") };
        let error = failure.into_store_error("test");
        assert_eq!((error.is_transient(), error.is_unwritten()), (true, false), "it may have been written");
    }
}
