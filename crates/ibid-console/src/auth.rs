//! Authentication: every request must carry the token.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::problem::Problem;

/// The token that an operator must send. Only its digest is kept in memory.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Shortest token, in bytes: 16 random characters cannot be guessed.
    pub const LEN_MIN: usize = 16;

    /// Makes a token from its text: visible ASCII without blanks, because that is what a `Bearer` credential allows.
    ///
    /// # Errors
    ///
    /// Fails if the text is shorter than [`Self::LEN_MIN`], or has other characters.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        if text.len() < Self::LEN_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError);
        }
        Ok(Token(digest(text)))
    }

    /// Compares in constant time: the digests are compared as a whole.
    fn matches(&self, text: &str) -> bool {
        bool::from(self.0.ct_eq(&digest(text)))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Error for a token that is too short or has other characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has at least 16 characters of visible ASCII, without blanks")]
pub struct TokenError;

pub(crate) async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let mut lines = request.headers().get_all(AUTHORIZATION).iter();
    let scheme_and_credential = match (lines.next().and_then(|line| line.to_str().ok()), lines.next()) {
        (Some(line), None) => {
            line.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        }
        _ => None,
    };
    match scheme_and_credential {
        Some((_, credential)) if token.matches(credential.trim()) => next.run(request).await,
        _ => {
            let path = request.uri().path();
            tracing::warn!(target: "ibid::security", path, "admin API request refused: token missing or wrong");
            Problem::unauthorized().into_response()
        }
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}
