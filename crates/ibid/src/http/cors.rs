//! CORS: which of ibid's own responses a script may read, and which CORS fields of a stored response a retry gets.
//!
//! Without these fields a browser turns a replay or a refusal into a network error. An application that then takes a new key
//! pays twice, which ibid is there to prevent.
//!
//! ```
//! use ibid::http::Cors;
//!
//! # fn main() -> Result<(), ibid::http::CorsError> {
//! let cors = Cors::new(["https://shop.example"])?.credentials()?;
//! # let _ = cors;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, HeaderName, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::ReplyBody;

/// The origins whose scripts may read the responses that ibid makes itself: refusals, 202 and the pages under `/.ibid/`.
///
/// By default none may. A response of the handler or upstream keeps its own CORS fields. A replay repeats them if they are
/// `*` or name the origin of the retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    origins: Origins,
    credentials: bool,
    max_age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origins {
    Any,
    Listed(Vec<HeaderValue>),
}

/// A list of origins, or a combination of settings, that browsers do not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorsError {
    /// No browser sends this text as `Origin`.
    #[error(
        "`{0}` is not an origin: write `https://shop.example`, with a port only if it is not the scheme's own"
    )]
    Origin(String),
    /// The list has `*` and other origins.
    #[error("`*` means every origin and stands alone")]
    AnyAndMore,
    /// Browsers refuse credentials where every origin is allowed.
    #[error("credentials need origins by name: browsers refuse them with `*`")]
    AnyWithCredentials,
}

impl Default for Cors {
    /// Allows no origin at all.
    fn default() -> Cors {
        Cors { origins: Origins::Listed(Vec::new()), credentials: false, max_age: MAX_AGE }
    }
}

impl Cors {
    /// Allows these origins, as a browser writes them (`https://shop.example`), or all of them (`*` alone).
    ///
    /// # Errors
    ///
    /// Fails if a browser would never send one of these origins, or if `*` is not alone.
    pub fn new<I>(origins: I) -> Result<Cors, CorsError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let mut listed = Vec::new();
        let mut any = false;
        for origin in origins {
            match origin.as_ref() {
                "*" => any = true,
                name => listed.push(parse_origin(name).ok_or_else(|| CorsError::Origin(name.to_owned()))?),
            }
        }
        match (any, listed.is_empty()) {
            (true, false) => Err(CorsError::AnyAndMore),
            (true, true) => Ok(Cors { origins: Origins::Any, ..Cors::default() }),
            (false, _) => Ok(Cors { origins: Origins::Listed(listed), ..Cors::default() }),
        }
    }

    /// Lets scripts send cookies and other credentials with their requests and read the responses.
    ///
    /// # Errors
    ///
    /// Fails if every origin is allowed: browsers refuse that combination.
    pub fn credentials(self) -> Result<Cors, CorsError> {
        match self.origins {
            Origins::Any => Err(CorsError::AnyWithCredentials),
            Origins::Listed(_) => Ok(Cors { credentials: true, ..self }),
        }
    }

    /// Sets how long a browser may cache the response to a preflight of `/.ibid/…`; ten minutes by default.
    pub fn max_age(self, max_age: Duration) -> Cors {
        Cors { max_age, ..self }
    }

    /// Returns the origins that are allowed; `*` alone for every one.
    pub fn origins(&self) -> Vec<&str> {
        match &self.origins {
            Origins::Any => vec!["*"],
            Origins::Listed(origins) => origins.iter().filter_map(|origin| origin.to_str().ok()).collect(),
        }
    }

    /// Returns whether scripts may send credentials.
    pub fn allows_credentials(&self) -> bool {
        self.credentials
    }

    /// Returns how long a browser may cache the response to a preflight.
    pub fn remembered_for(&self) -> Duration {
        self.max_age
    }

    /// Sets the CORS fields of a response that is about to leave: for ibid's own by this configuration, for a replay by the
    /// stored fields. Every other response is the handler's and stays as it is.
    pub(super) fn finish<B>(&self, origin: Option<&HeaderValue>, response: &mut Response<B>) {
        match response.extensions().get::<MadeBy>() {
            Some(MadeBy::Ibid) => self.allow(origin, response.headers_mut()),
            Some(MadeBy::Replay) => keep_if_safe(origin, response.headers_mut()),
            None => {}
        }
    }

    /// Renders the response to a preflight of one of ibid's own pages. `None` if this is no preflight or the origin is not
    /// allowed.
    pub(super) fn preflight<B>(&self, asked: &HeaderMap) -> Option<Response<ReplyBody<B>>> {
        asked.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        let origin = asked.get(ORIGIN);
        self.allowed_origin(origin)?;
        let mut response = Response::new(ReplyBody::whole(Bytes::new(), None));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        self.allow(origin, headers);
        headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));
        // The tenant may be in any field. An origin that is allowed to read the page is allowed to name its fields.
        for names in asked.get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.append(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age.as_secs()));
        headers.append(VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }

    fn allow(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        match &self.origins {
            Origins::Listed(origins) if origins.is_empty() => return,
            Origins::Listed(_) => vary_by_origin(headers),
            Origins::Any => {}
        }
        let Some(allowed) = self.allowed_origin(origin) else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        expose_fields(headers);
    }

    /// Returns the value of `Access-Control-Allow-Origin` for this origin; `None` if it is not allowed.
    fn allowed_origin(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        let origin = origin?;
        match &self.origins {
            Origins::Any => Some(HeaderValue::from_static("*")),
            Origins::Listed(origins) => origins.contains(origin).then(|| origin.clone()),
        }
    }
}

/// The maker of a response, in its extensions. The handler's first response has none.
#[derive(Clone, Copy, Debug)]
pub(super) enum MadeBy {
    /// ibid itself: a refusal, 202, a page.
    Ibid,
    /// The handler, for an earlier request.
    Replay,
}

/// Lets scripts read ibid's fields of a response whose origin is allowed already.
pub(super) fn expose_fields(headers: &mut HeaderMap) {
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}

/// Removes all CORS fields.
pub(super) fn remove(headers: &mut HeaderMap) {
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let names: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Keeps the stored CORS fields if they allow every origin or the origin of the retry, and removes them otherwise. The
/// handler decided for the origin of the first request; its decision for another is not known here.
fn keep_if_safe(origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let mut allowed = headers.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter();
    let is_safe = match (allowed.next().cloned(), allowed.next()) {
        (None, _) => false,
        (Some(any), None) if any == "*" => true,
        (Some(named), None) => {
            vary_by_origin(headers);
            Some(&named) == origin
        }
        // Two lines allow nothing: browsers refuse them.
        (Some(_), Some(_)) => false,
    };
    if is_safe {
        expose_fields(headers);
    } else {
        remove(headers);
    }
}

/// Adds `Vary: Origin`, because another origin gets a different response.
fn vary_by_origin(headers: &mut HeaderMap) {
    let names_origin = |line: &HeaderValue| {
        let names = line.to_str().unwrap_or_default().split(',').map(str::trim);
        names.into_iter().any(|name| name == "*" || name.eq_ignore_ascii_case("origin"))
    };
    if !headers.get_all(VARY).iter().any(names_origin) {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// Parses an origin as browsers write it: scheme, host in lower case, the port unless it is the scheme's own, nothing after.
/// Anything else would never equal the `Origin` that they send.
fn parse_origin(text: &str) -> Option<HeaderValue> {
    let (scheme, authority) = text.split_once("://")?;
    let is_scheme = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    let is_host = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._~:[]".contains(&byte);
    let names_own_port = match scheme {
        "http" => authority.ends_with(":80"),
        "https" => authority.ends_with(":443"),
        _ => false,
    };
    let is_plain = !scheme.is_empty() && scheme.bytes().all(is_scheme);
    let is_written_so = !authority.is_empty()
        && authority.bytes().all(is_host)
        && !authority.ends_with(':')
        && !names_own_port;
    (is_plain && is_written_so).then(|| HeaderValue::from_str(text).ok())?
}

/// Fields that scripts may read in addition to those that browsers always show.
const EXPOSED: &str = "Idempotent-Replayed, Idempotency-Expires, Idempotency-Outcome, Idempotency-Stored, Repeatability-Result, Retry-After, Location, Link";

/// Default time for which a browser caches the response to a preflight. A change of the configuration reaches browsers within
/// minutes, and a page that polls sends one preflight for many requests.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap()
    }

    #[test]
    fn only_origins_that_browsers_send_are_accepted() {
        for good in [
            "https://a.example",
            "http://127.0.0.1:3000",
            "http://[::1]:8080",
            "app://x",
            "https://a.example:80",
        ] {
            assert!(Cors::new([good]).is_ok(), "{good}");
        }
        for bad in [
            "",
            "null",
            "a.example",
            "https://",
            "://a",
            "https://a.example/",
            "https://A.example",
            "HTTPS://a.example",
            "https://a.example:443",
            "http://a.example:80",
            "https://a.example, https://b.example",
            "https://*.example",
            "https://u@a.example",
            "https://a.example:",
        ] {
            assert_eq!(Cors::new([bad]), Err(CorsError::Origin(bad.to_owned())), "{bad}");
        }
        assert_eq!(Cors::new(["*", "https://a.example"]), Err(CorsError::AnyAndMore));
        assert_eq!(Cors::new(["*"]).unwrap().credentials(), Err(CorsError::AnyWithCredentials));
    }

    #[test]
    fn stored_cors_fields_are_replayed_only_to_allowed_origins() {
        // Stored value, origin of the retry, value that the retry gets.
        let cases = [
            (Some("*"), Some("https://a"), Some("*")),
            (Some("*"), None, Some("*")),
            (Some("https://a"), Some("https://a"), Some("https://a")),
            (Some("https://a"), Some("https://b"), None),
            (Some("https://a"), Some("https://a.evil"), None),
            (Some("https://a"), None, None),
            (None, Some("https://a"), None),
        ];
        for (stored, origin, sent) in cases {
            let mut headers = HeaderMap::new();
            if let Some(stored) = stored {
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, value(stored));
            }
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value("true"));
            headers.insert(VARY, value("Accept"));
            keep_if_safe(origin.map(value).as_ref(), &mut headers);
            let case = format!("{stored:?} {origin:?}");
            assert_eq!(headers.get(ACCESS_CONTROL_ALLOW_ORIGIN), sent.map(value).as_ref(), "{case}");
            assert_eq!(headers.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS), sent.is_some(), "{case}");
            assert_eq!(headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS), sent.is_some(), "{case}");
            let varies = headers.get_all(VARY).iter().any(|line| line == "Origin");
            assert_eq!(varies, stored.is_some_and(|stored| stored != "*"), "{case}");
        }
        let mut twice = HeaderMap::new();
        twice.append(ACCESS_CONTROL_ALLOW_ORIGIN, value("*"));
        twice.append(ACCESS_CONTROL_ALLOW_ORIGIN, value("*"));
        keep_if_safe(None, &mut twice);
        assert!(twice.is_empty(), "{twice:?}");
    }
}
