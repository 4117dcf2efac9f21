//! Requests that pass unguarded because they carry no key, and keys that they carry where nobody looks.
//!
//! A client whose key is in another place runs unguarded in silence, and its operator believes otherwise. So the first
//! such request of each route is logged, with the place and never with the key.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, Request, header};
use ibid_core::fingerprint::RequestView;
use ibid_core::key_source::KeySource;
use ibid_core::policy::Policy;

use super::routes::Route;

/// The routes that were reported. There are as many as are configured.
#[derive(Debug, Default)]
pub(super) struct KeysElsewhere(Mutex<HashSet<Arc<str>>>);

/// Marks a request that passes unguarded because it carries no key; found in its extensions until a request of its
/// route was reported.
///
/// The guard has looked at the head. A service that sees the body pass may look into that too.
#[derive(Clone, Debug)]
pub struct WithoutKey {
    route: Arc<str>,
    policy: Arc<Policy>,
    reported: Arc<KeysElsewhere>,
    /// What the body's fields say about it.
    headers: HeaderMap,
}

impl WithoutKey {
    /// Whether no request of this route was reported so far.
    pub fn is_open(&self) -> bool {
        !self.reported.lock().contains(&self.route)
    }

    /// Looks for a key in the whole body, and logs its place if there is one.
    pub fn look_into(&self, body: &[u8]) {
        let sent = KeylessRequest { headers: &self.headers, body };
        if let Some(place) = self.policy.key_from.find_elsewhere(&sent) {
            self.reported.report(&self.route, &place);
        }
    }
}

/// Looks for a key in the head of a request that passes unguarded, and lets the next service look into the body.
pub(super) fn notice<B>(reported: &Arc<KeysElsewhere>, route: &Route, request: &mut Request<B>) {
    if reported.lock().contains(&route.pattern) {
        return;
    }
    let sent = KeylessRequest { headers: request.headers(), body: b"" };
    if let Some(place) = route.policy.key_from.find_elsewhere(&sent) {
        return reported.report(&route.pattern, &place);
    }
    let mut headers = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        for value in request.headers().get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    let (route, policy) = (route.pattern.clone(), route.policy.clone());
    request.extensions_mut().insert(WithoutKey { route, policy, reported: reported.clone(), headers });
}

impl KeysElsewhere {
    fn report(&self, route: &Arc<str>, place: &KeySource) {
        if self.lock().insert(route.clone()) {
            tracing::warn!(
                %route,
                %place,
                "a request without a key passed unguarded, and has one in another place: see `key_from`"
            );
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of a request in which a key may be.
struct KeylessRequest<'a> {
    headers: &'a HeaderMap,
    body: &'a [u8],
}

impl RequestView for KeylessRequest<'_> {
    fn method(&self) -> &str {
        ""
    }

    fn path(&self) -> &str {
        ""
    }

    fn query(&self) -> Option<&str> {
        None
    }

    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn body(&self) -> &[u8] {
        self.body
    }
}
