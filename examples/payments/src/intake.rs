//! Checks the body of a request before anybody else sees it.
//!
//! It stands outside of the guard: a request that can't be carried out as written must not use up its key, so that
//! the client may mend it and send it under the same one. What was read goes with the request, and the handler takes
//! it as an argument of type [`NewPayment`] or [`NewRide`].
//!
//! A retry passes here like the first request. Whoever makes these checks stricter turns away the retries of requests
//! that were accepted before: let such a change wait for a new path or version.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, request};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::input::{Input, InputError, NewPayment, NewRide};
use crate::problem::Problem;

/// The middleware: reads and checks what is posted, and passes on everything else untouched.
pub async fn check_input(request: Request, next: Next) -> Response {
    let checked = match (request.method(), request.uri().path()) {
        (&Method::POST, PAYMENTS) => check::<NewPayment>(request).await,
        (&Method::POST, RIDES) => check::<NewRide>(request).await,
        _ => Ok(request),
    };
    match checked {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The same request, with what was read among its extensions.
async fn check<T: Input>(request: Request) -> Result<Request, Problem> {
    let (mut head, body) = request.into_parts();
    let (parsed, body) = read::<T>(&head, body).await?;
    head.extensions.insert(Parsed(parsed));
    // The guard fingerprints the bytes as they came, so they are passed on as they came.
    Ok(Request::from_parts(head, Body::from(body)))
}

async fn read<T: Input>(head: &request::Parts, body: Body) -> Result<(T, Bytes), Problem> {
    if !is_json(&head.headers) {
        return Err(Problem::media_type());
    }
    let collected = Limited::new(body, BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_WITHIN, collected).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Problem::too_large(BODY_BYTES_MAX)),
        Ok(Err(_)) => return Err(Problem::malformed("the body broke off")),
        Err(_) => return Err(Problem::too_slow()),
    };
    match T::parse(&body) {
        Ok(parsed) => Ok((parsed, body)),
        Err(InputError::Malformed(why)) => Err(Problem::malformed(why)),
        Err(InputError::Fields(errors)) => Err(Problem::invalid(errors)),
    }
}

/// JSON, or nothing said.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(line) = headers.get(CONTENT_TYPE) else { return true };
    let Ok(line) = line.to_str() else { return false };
    let essence = line.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[derive(Clone)]
struct Parsed<T>(T);

/// What the middleware has read. A request that is resumed from its record did not come through the middleware,
/// and is read here.
async fn extract<T: Input>(request: Request) -> Result<T, Problem> {
    let (mut head, body) = request.into_parts();
    match head.extensions.remove::<Parsed<T>>() {
        Some(Parsed(parsed)) => Ok(parsed),
        None => Ok(read(&head, body).await?.0),
    }
}

impl<S: Sync> FromRequest<S> for NewPayment {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<NewPayment, Problem> {
        extract(request).await
    }
}

impl<S: Sync> FromRequest<S> for NewRide {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<NewRide, Problem> {
        extract(request).await
    }
}

/// Where payments are made.
pub const PAYMENTS: &str = "/payments";

/// Where rides are booked.
pub const RIDES: &str = "/rides";

/// Five fields of at most 512 bytes each, with room for escapes.
const BODY_BYTES_MAX: usize = 16 << 10;

/// A few kilobytes come at once, or the line is so bad that a new connection is the better try.
const BODY_WITHIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::post;
    use http::StatusCode;
    use tower::ServiceExt as _;

    const GOOD: &str = r#"{"customerId":"ann","amountCents":5,"currency":"EUR"}"#;

    fn router() -> Router {
        let handler = async |payment: NewPayment| payment.amount_cents.to_string();
        Router::new()
            .route(PAYMENTS, post(handler))
            .route("/echo", post(async |body: String| body))
            .route("/unchecked", post(handler))
            .layer(axum::middleware::from_fn(check_input))
    }

    async fn send(path: &str, kind: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(path).header(CONTENT_TYPE, kind).body(body.into()).unwrap();
        let answer = router().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_handler_gets_what_was_read_with_or_without_the_middleware() {
        for path in [PAYMENTS, "/unchecked"] {
            for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"] {
                assert_eq!(send(path, kind, GOOD).await, (StatusCode::OK, "5".into()), "{path} {kind}");
            }
            assert_eq!(send(path, "application/json", "{}").await.0, StatusCode::UNPROCESSABLE_ENTITY);
        }
    }

    #[tokio::test]
    async fn other_types_and_other_sizes_are_refused() {
        assert_eq!(send(PAYMENTS, "text/plain", GOOD).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let padded = format!("{GOOD}{}", " ".repeat(BODY_BYTES_MAX - GOOD.len()));
        assert_eq!(send(PAYMENTS, "application/json", padded.clone()).await.0, StatusCode::OK);
        let (status, body) = send(PAYMENTS, "application/json", format!("{padded} ")).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(body.contains("16384 bytes"), "{body}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_not_waited_for() {
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(send(PAYMENTS, "application/json", never).await.0, StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn other_paths_pass_untouched() {
        assert_eq!(send("/echo", "text/plain", "anything").await, (StatusCode::OK, "anything".into()));
    }
}
