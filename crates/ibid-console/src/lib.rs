//! The operator's API: records, effects, dead letters, tenants and upkeep, as JSON under `/v1`.
//!
//! It decides nothing itself: every action goes through [`ibid::operator`]. Do not mount it on the listener that clients can
//! reach.
//!
//! ```no_run
//! # async fn serve(ibid: ibid::Ibid) -> Result<(), Box<dyn std::error::Error>> {
//! let token = ibid_console::Token::new("from-a-secret-store-0123456789")?;
//! let admin: axum::Router = ibid_console::router(&ibid, token);
//! # Ok(()) }
//! ```

mod auth;
mod bulk;
mod dto;
mod effects;
mod extract;
mod problem;
mod records;
mod status;
mod views;

use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Method, StatusCode, Uri};
use ibid::Ibid;
use ibid::operator::Operator;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi as Document, RefOr, Schema};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use auth::{Token, TokenError};
pub use status::CountsView;
pub use views::rfc3339;

use problem::Problem;

/// Returns the router of the API for this engine. Every request must carry the token.
pub fn router(ibid: &Ibid, token: Token) -> Router {
    let (router, document) = parts();
    let state = AppState { operator: Operator::new(ibid), ibid: ibid.clone() };
    router
        .route("/v1/openapi.json", axum::routing::get(move || async move { Json(document) }))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(token, auth::check))
        .layer(middleware::from_fn(limit_time))
        .with_state(state)
}

/// Returns the OpenAPI document of the API.
pub fn openapi() -> Document {
    parts().1
}

/// State that every handler uses.
#[derive(Clone)]
struct AppState {
    operator: Operator,
    ibid: Ibid,
}

fn parts() -> (Router<AppState>, Document) {
    let (router, mut document) = api().split_for_parts();
    let schemas = document.components.iter_mut().flat_map(|components| components.schemas.values_mut());
    schemas.for_each(close);
    (router, document)
}

/// Adds `additionalProperties: false` to each form of a choice. The API refuses unknown fields there, so the document must
/// say so.
fn close(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::OneOf(choice)) = schema else { return };
    for form in &mut choice.items {
        if let RefOr::T(Schema::Object(object)) = form
            && !object.properties.is_empty()
        {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}

fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(records::list))
        .routes(routes!(bulk::preview))
        .routes(routes!(bulk::act))
        .routes(routes!(records::show))
        .routes(routes!(records::resolve))
        .routes(routes!(records::forget))
        .routes(routes!(effects::list))
        .routes(routes!(effects::retry))
        .routes(routes!(effects::discard))
        .routes(routes!(effects::dead_letters))
        .routes(routes!(status::counts))
        .routes(routes!(status::tenants))
        .routes(routes!(status::upkeep))
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ibid operator API",
        description = "Views and actions for operators. Every action needs a name and a reason, and is stored in the record's \
                       history with who, what, before and after. Served on the admin listener only.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    security(("token" = [])),
    components(schemas(problem::ProblemView)),
    modifiers(&Bearer),
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut Document) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

async fn no_such_path(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", "No such path")
        .detail(format!("`{}` is not a path of this API: see `/v1/openapi.json`", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed")
        .detail(format!("`{}` does not accept {method}: see `/v1/openapi.json`", uri.path()))
}

/// Bounds the time of every response, and forbids caching, because responses describe the current state.
async fn limit_time(request: Request, next: Next) -> Response {
    let result = tokio::time::timeout(ANSWER_WITHIN, next.run(request)).await;
    let mut response = result.unwrap_or_else(|_| Problem::too_slow().into_response());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Longest time for a response. A list that scans millions of rows takes some seconds, and an operator will not wait longer
/// than this.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
