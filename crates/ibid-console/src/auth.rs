//! Who may ask: whoever knows the token. No token, no API.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::problem::Problem;

/// What an operator must show. Only its digest is kept.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Shortest token, in bytes: 16 random ones can't be guessed.
    pub const LEN_MIN: usize = 16;

    /// This token. A `Bearer` credential has visible ASCII without blanks, so that is what it must be made of.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        if text.len() < Self::LEN_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError);
        }
        Ok(Token(digest(text)))
    }

    /// In a time that tells nothing about the token: digests are compared, whole.
    fn is(&self, shown: &str) -> bool {
        bool::from(self.0.ct_eq(&digest(shown)))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// No good token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has at least 16 characters of visible ASCII, without blanks")]
pub struct TokenError;

pub(crate) async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let mut lines = request.headers().get_all(AUTHORIZATION).iter();
    let shown = match (lines.next().and_then(|line| line.to_str().ok()), lines.next()) {
        (Some(line), None) => {
            line.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        }
        _ => None,
    };
    match shown {
        Some((_, shown)) if token.is(shown.trim()) => next.run(request).await,
        _ => {
            tracing::warn!(target: "ibid::security", path = request.uri().path(), "refused at the admin API");
            Problem::unauthorized().into_response()
        }
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}
