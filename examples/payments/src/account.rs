//! Authentication: a bearer token belongs to an account, and the account is the tenant of every idempotency key.
//!
//! So equal keys of two accounts are two different requests. The account never comes from the body, where a client could
//! name any account. Only digests of tokens stay in memory.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use ibid::Tenant;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::problem::Problem;

/// The accounts by the digest of their tokens. Clones share the map.
#[derive(Clone, Debug)]
pub struct Accounts(Arc<HashMap<[u8; 32], Tenant>>);

impl Accounts {
    /// Reads and parses an accounts file.
    pub fn read(path: &str) -> Result<Accounts, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read `{path}`: {error}"))?;
        Accounts::parse(&text)
    }

    /// Parses `token = account` line by line. Lines that start with `#` are comments. Errors name the line but do not show
    /// it, because it may contain a token.
    pub fn parse(text: &str) -> Result<Accounts, String> {
        let mut accounts = HashMap::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // Split at the last `=`: a base64 token may end in `=`, an account may not.
            let (token, account) = line.rsplit_once('=').unwrap_or_default();
            let token = token.trim();
            let is_pair = !token.is_empty() && line.split_whitespace().count() <= 3;
            let account = Tenant::new(account.trim()).ok().filter(|_| is_pair);
            let account = account.ok_or_else(|| format!("line {number} is not `token = account`"))?;
            if accounts.insert(digest(token), account).is_some() {
                return Err(format!("the token on line {number} is also on an earlier line"));
            }
        }
        if accounts.is_empty() {
            return Err("the file contains no account".to_owned());
        }
        Ok(Accounts(accounts.into()))
    }
}

/// Middleware that requires an account for every request, except for webhooks: these are signed, and ibid checks the
/// signature. ibid and the handlers take the account from the request's extensions.
pub async fn authenticate(
    State(accounts): State<Option<Accounts>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if !request.uri().path().starts_with("/.ibid/hooks/") {
        let account = account_of(accounts.as_ref(), request.headers()).ok_or_else(Problem::unauthorized)?;
        request.extensions_mut().insert(account);
    }
    Ok(next.run(request).await)
}

fn account_of(accounts: Option<&Accounts>, headers: &HeaderMap) -> Option<Tenant> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    // Refuse two `Authorization` lines: a proxy in front of us may have checked the other one.
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    if token.is_empty() || !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let digest = digest(token);
    match accounts {
        Some(accounts) => accounts.0.get(&digest).cloned(),
        // Each token is an account. 128 bits of the digest are unique in practice and make a short name.
        None => Tenant::new(&format!("token-{}", Uuid::from_slice(&digest[..16]).ok()?.simple())).ok(),
    }
}

/// Hashes a token for the lookup in [`Accounts`].
///
/// Comparing tokens byte by byte would leak through its timing how much of a guessed token is right. The digest of a guess
/// tells nothing about the digest of a token that shares a prefix with it.
fn digest(token: &str) -> [u8; 32] {
    Sha256::new_with_prefix(b"payments account of token 1\0").chain_update(token).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(list: Option<&str>, line: &str) -> Option<String> {
        let list = list.map(|text| Accounts::parse(text).unwrap());
        let headers = [(AUTHORIZATION, line.parse().unwrap())].into_iter().collect();
        account_of(list.as_ref(), &headers).map(|account| account.as_str().to_owned())
    }

    #[test]
    fn only_listed_tokens_have_an_account() {
        let list = Some("# ours\n sk_ann = ann\n\nsk_bob== = bob\nsk_ann2=ann\n");
        assert_eq!(account(list, "Bearer sk_ann"), Some("ann".into()));
        assert_eq!(account(list, "bearer  sk_bob== "), Some("bob".into()));
        assert_eq!(account(list, "Bearer sk_ann2"), Some("ann".into()));
        for line in ["Bearer sk_ann3", "Bearer sk_an", "Basic sk_ann", "Bearer", "Bearer ", "sk_ann", ""] {
            assert_eq!(account(list, line), None, "{line}");
        }
    }

    #[test]
    fn two_credentials_are_none() {
        let line = || (AUTHORIZATION, "Bearer token".parse().unwrap());
        assert!(account_of(None, &[line()].into_iter().collect()).is_some());
        assert_eq!(account_of(None, &[line(), line()].into_iter().collect()), None);
    }

    #[test]
    fn without_a_list_each_token_is_an_account() {
        // A different digest would rename every account, and clients would no longer see their payments.
        assert_eq!(account(None, "Bearer token"), Some("token-0a547535588f7c75e8f23e00362610b9".into()));
        assert_ne!(account(None, "Bearer token2"), account(None, "Bearer token"));
        assert_eq!(account(None, "Basic token"), None);
    }

    #[test]
    fn errors_name_the_line_and_show_no_token() {
        for (text, says) in [
            ("# only\n", "no account"),
            ("\nhunter2", "line 2"),
            ("hunter2 = ", "line 1"),
            ("hunter2 = a b", "line 1"),
            ("hunt er2 = a", "line 1"),
            (" = a", "line 1"),
            ("hunter2 = a\nhunter2 = b", "line 2"),
        ] {
            let error = Accounts::parse(text).unwrap_err();
            assert!(error.contains(says) && !error.contains("hunter2"), "{text:?}: {error}");
        }
        assert!(!format!("{:?}", Accounts::parse("hunter2 = a").unwrap()).contains("hunter2"));
    }
}
