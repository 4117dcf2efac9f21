//! Strict extractors: they refuse unknown names, bound the body, and say why they refuse a request.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

/// The parsed query string.
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

/// One parsed segment of the path.
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

/// The parsed JSON body.
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
                .detail(format!("a body has at most {BODY_MAX} bytes and must be complete"))
        })?;
        let unreadable = |error: serde_json::Error| Problem::invalid(format!("the body: {error}"));
        let value: Value = serde_json::from_slice(&bytes).map_err(unreadable)?;
        if has_stray_list(&value, false) {
            return Err(Problem::invalid("the body: found a list where an object belongs"));
        }
        serde_json::from_value(normalize_numbers(value)).map(JsonBody).map_err(unreadable)
    }
}

/// Returns whether a list is in a place where an object belongs. serde would accept it as an object, with its items as the
/// fields in order. Only `records` may be a list, and only of objects.
fn has_stray_list(value: &Value, is_list_field: bool) -> bool {
    match value {
        Value::Array(items) => {
            !is_list_field || items.iter().any(|item| !item.is_object() || has_stray_list(item, false))
        }
        Value::Object(fields) => fields.iter().any(|(name, value)| has_stray_list(value, name == "records")),
        _ => false,
    }
}

/// Turns floats without a fraction into integers: in JSON, `201` and `201.0` are the same number, and a schema's integer
/// allows both. The parser bounds the depth of the recursion.
fn normalize_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE_MAX => {
                Value::from(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(normalize_numbers).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, normalize_numbers(value))).collect()
        }
        other => other,
    }
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// 2^53: below this, a float represents every whole number exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Longest body, in bytes: a response of a megabyte with JSON escapes, or the ids of five hundred records.
const BODY_MAX: usize = 2 << 20;
