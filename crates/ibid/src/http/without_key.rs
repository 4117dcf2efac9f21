//! Requests that pass unguarded because they carry no key in a configured source, and the keys that they carry elsewhere.
//!
//! A client that puts its key elsewhere runs unguarded without a sign of it, and its operator believes that it is guarded. So
//! the first such request of each route is logged, with the source of the key and never with the key.

use std::collections::HashSet;
use std::sync::Arc;

use http::{HeaderMap, Request, header};
use ibid_core::fingerprint::RequestView;
use ibid_core::key_source::KeySource;
use ibid_core::policy::Policy;
use parking_lot::Mutex;

use super::routes::Route;

/// The routes that were reported; at most as many as are configured.
#[derive(Debug, Default)]
pub(super) struct KeysElsewhere(Mutex<HashSet<Arc<str>>>);

/// Marks a request that passes unguarded because it carries no key. It is in the request's extensions until a request of its
/// route has been reported.
///
/// The layer has searched the head. A service that reads the body may search that with [`WithoutKey::look_into`].
#[derive(Clone, Debug)]
pub struct WithoutKey {
    route: Arc<str>,
    policy: Arc<Policy>,
    reported: Arc<KeysElsewhere>,
    /// The header fields that describe the body.
    headers: HeaderMap,
}

impl WithoutKey {
    /// Returns whether no request of this route has been reported so far.
    pub fn is_open(&self) -> bool {
        !self.reported.0.lock().contains(&self.route)
    }

    /// Looks for a key in the whole body, and logs its source if there is one.
    pub fn look_into(&self, body: &[u8]) {
        let sent = KeylessRequest { headers: &self.headers, body };
        if let Some(source) = self.policy.key_from.find_elsewhere(&sent) {
            self.reported.report(&self.route, &source);
        }
    }
}

/// Looks for a key in the head of a request that passes unguarded, and lets the next service look into the body.
pub(super) fn notice<B>(reported: &Arc<KeysElsewhere>, route: &Route, request: &mut Request<B>) {
    if reported.0.lock().contains(&route.pattern) {
        return;
    }
    let sent = KeylessRequest { headers: request.headers(), body: b"" };
    if let Some(source) = route.policy.key_from.find_elsewhere(&sent) {
        return reported.report(&route.pattern, &source);
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
    fn report(&self, route: &Arc<str>, source: &KeySource) {
        if self.0.lock().insert(route.clone()) {
            tracing::warn!(
                %route,
                source = %source,
                "request without a key passed unguarded, but carries one elsewhere: see `key_from`"
            );
        }
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
