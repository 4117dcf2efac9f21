//! What a request carries, read strictly: unknown names are refused, bodies are bounded, and every refusal says why.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// The query string.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(QueryParams(value)),
            Err(error) => Err(Problem::invalid(format!("the query: {}", error.body_text()))),
        }
    }
}

/// One segment of the path.
pub(crate) struct PathParam<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParam<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(PathParam(value)),
            Err(error) => Err(Problem::invalid(format!("the path: {}", error.body_text()))),
        }
    }
}

/// The body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(&request) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let problem = Problem::new(status, "unsupported-media-type", "The body has the wrong type");
            return Err(problem.detail("send JSON, with `Content-Type: application/json`"));
        }
        let bytes = axum::body::to_bytes(request.into_body(), BODY_MAX).await.map_err(|_| {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large")
                .detail(format!("a body has at most {BODY_MAX} bytes and comes to its end"))
        })?;
        let unreadable = |error: serde_json::Error| Problem::invalid(format!("the body: {error}"));
        let value: Value = serde_json::from_slice(&bytes).map_err(unreadable)?;
        if has_stray_list(&value, false) {
            return Err(Problem::invalid("the body: a list stands where an object belongs"));
        }
        serde_json::from_value(whole(value)).map(JsonBody).map_err(unreadable)
    }
}

/// The reader would take a list for an object, its fields in their order. Only `records` is one, and of objects.
fn has_stray_list(value: &Value, listed: bool) -> bool {
    match value {
        Value::Array(items) => {
            !listed || items.iter().any(|item| !item.is_object() || has_stray_list(item, false))
        }
        Value::Object(fields) => fields.iter().any(|(name, value)| has_stray_list(value, name == "records")),
        _ => false,
    }
}

/// In JSON `201` and `201.0` are one number, and a schema's integer is either. Depth is the parser's own bound.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE_MAX => {
                Value::from(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, whole(value))).collect(),
        other => other,
    }
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// Up to here every whole number has a float of its own.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// An answer of a megabyte, escaped, or the names of five hundred records.
const BODY_MAX: usize = 2 << 20;
