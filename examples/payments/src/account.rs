//! Whose request it is: a bearer token stands for an account, and the account is the tenant of every key.
//!
//! Tokens are kept and compared as digests only. The body is never asked: whoever writes a body could name any account.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::AUTHORIZATION;
use http::{HeaderMap, request};
use ibid::core::scope::Tenant;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::problem::Problem;

/// Whose request it is. Handlers take it as an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account(Arc<str>);

impl Account {
    /// The account that a guarded request was made for: also when the sweeper runs it, without its credential.
    pub fn of_tenant(tenant: &Tenant) -> Account {
        Account(tenant.as_str().into())
    }

    /// Its name, which is no secret.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Which token stands for which account. Clones share the list.
#[derive(Clone)]
pub struct Accounts(Arc<[Entry]>);

struct Entry {
    digest: [u8; 32],
    account: Account,
}

/// Why a file of accounts can't be used. No variant holds a token.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    /// It can't be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Unreadable {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A line is not `token = account`.
    #[error("line {0} is not `token = account`")]
    Line(usize),
    /// A token of characters that no bearer token has.
    #[error("the token on line {0} has characters that no bearer token has, or too many")]
    Token(usize),
    /// An account that can't be one.
    #[error("the account on line {0} must be 1 to 64 letters, digits, `-`, `_` or `.`")]
    Account(usize),
    /// Two lines for one token.
    #[error("the token on line {0} stands on an earlier line, too")]
    Repeated(usize),
    /// Nobody could get in.
    #[error("there is no account in it")]
    Empty,
}

impl Accounts {
    /// Reads a file.
    pub fn read(path: &str) -> Result<Accounts, AccountsError> {
        let path = Path::new(path);
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| AccountsError::Unreadable { path: path.to_owned(), source })?;
        Accounts::parse(&text)
    }

    /// Reads `token = account` line by line, either in quotes or not. `#` begins a line that says nothing.
    pub fn parse(text: &str) -> Result<Accounts, AccountsError> {
        let mut all: Vec<Entry> = Vec::new();
        for (at, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // Tokens may end in `=`, accounts have none.
            let (token, account) = line.rsplit_once('=').ok_or(AccountsError::Line(at))?;
            let (token, account) = (unquoted(token), unquoted(account));
            if !is_token(token.as_bytes()) {
                return Err(AccountsError::Token(at));
            }
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if !(1..=ACCOUNT_BYTES_MAX).contains(&account.len()) || !account.bytes().all(plain) {
                return Err(AccountsError::Account(at));
            }
            let digest = digest_of(token.as_bytes());
            if all.iter().any(|entry| entry.digest == digest) {
                return Err(AccountsError::Repeated(at));
            }
            all.push(Entry { digest, account: Account(account.into()) });
        }
        if all.is_empty() { Err(AccountsError::Empty) } else { Ok(Accounts(all.into())) }
    }

    /// Looks at every entry, whichever it is, so that the time it takes says nothing.
    fn find(&self, digest: &[u8; 32]) -> Option<Account> {
        let mut found = u64::MAX;
        for (at, entry) in (0u64..).zip(self.0.iter()) {
            let same: Choice = entry.digest.ct_eq(digest);
            found.conditional_assign(&at, same);
        }
        let found = usize::try_from(found).ok()?;
        self.0.get(found).map(|entry| entry.account.clone())
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({})", self.0.len())
    }
}

/// How accounts are told apart.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// By this list; other tokens are turned away.
    Listed(Accounts),
    /// Each token is an account of its own: for trying out, and for static tokens only.
    AnyToken,
}

impl Authentication {
    /// Whose request this is.
    pub fn account_of(&self, headers: &HeaderMap) -> Option<Account> {
        let digest = digest_of(token_of(headers)?);
        match self {
            Authentication::Listed(accounts) => accounts.find(&digest),
            Authentication::AnyToken => {
                // 128 bits of it: nobody finds a second token with the same, and the name stays short in tables.
                let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
                Some(Account(format!("token-{hex}").into()))
            }
        }
    }
}

/// The middleware: no request gets further without an account, but webhooks, which are signed instead.
pub async fn authenticate(
    State(authentication): State<Authentication>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().path().starts_with(HOOKS) {
        return next.run(request).await;
    }
    match authentication.account_of(request.headers()) {
        Some(account) => {
            request.extensions_mut().insert(account);
            next.run(request).await
        }
        None => Problem::unauthorized().into_response(),
    }
}

impl<S: Sync> FromRequestParts<S> for Account {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut request::Parts, _: &S) -> Result<Account, Problem> {
        parts.extensions.get::<Account>().cloned().ok_or_else(Problem::unauthorized)
    }
}

/// The one bearer token of a request.
fn token_of(headers: &HeaderMap) -> Option<&[u8]> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let (scheme, token) = line.as_bytes().trim_ascii().split_at_checked(SCHEME.len())?;
    let token = token.strip_prefix(b" ")?.trim_ascii();
    (scheme.eq_ignore_ascii_case(SCHEME) && is_token(token)).then_some(token)
}

/// RFC 6750, 2.1.
fn is_token(token: &[u8]) -> bool {
    let body = token.iter().rposition(|byte| *byte != b'=').map_or(0, |at| at + 1);
    body > 0
        && token.len() <= TOKEN_BYTES_MAX
        && token[..body].iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(byte))
}

fn digest_of(token: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    // Not the digest that anybody else makes of the same token.
    digest.update(b"payments account of token 1\0");
    digest.update(token);
    digest.finalize().into()
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

const SCHEME: &[u8] = b"Bearer";

/// Where webhooks come in. The guard looks at their signature, and nothing else gets past it there.
const HOOKS: &str = "/.ibid/hooks/";

/// It stands in every payment and in every index.
const ACCOUNT_BYTES_MAX: usize = 64;

/// Tokens have some dozen bytes; those that carry claims have some hundred.
const TOKEN_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (AUTHORIZATION, line.parse().unwrap())).collect()
    }

    fn listed(text: &str, lines: &[&str]) -> Option<String> {
        let how = Authentication::Listed(Accounts::parse(text).unwrap());
        how.account_of(&headers(lines)).map(|account| account.name().to_owned())
    }

    #[test]
    fn a_listed_token_is_its_account_and_no_other_gets_in() {
        let text = "# ours\n sk_ann = ann\n\n\"sk_bob==\" = \"bob\"\nsk_ann2=ann\n";
        assert_eq!(listed(text, &["Bearer sk_ann"]), Some("ann".into()));
        assert_eq!(listed(text, &["bearer  sk_bob== "]), Some("bob".into()));
        assert_eq!(listed(text, &["Bearer sk_ann2"]), Some("ann".into()));
        for line in
            ["Bearer sk_ann3", "Bearer sk_an", "Basic sk_ann", "Bearer", "Bearer ", "sk_ann", "Bearersk_ann"]
        {
            assert_eq!(listed(text, &[line]), None, "{line}");
        }
        assert_eq!(listed(text, &[]), None);
        assert_eq!(listed(text, &["Bearer sk_ann", "Bearer sk_ann"]), None);
    }

    #[test]
    fn without_a_list_each_token_is_an_account_that_does_not_show_it() {
        let account = |line: &str| Authentication::AnyToken.account_of(&headers(&[line]));
        let ann = account("Bearer hunter2").unwrap();
        assert!(ann.name().starts_with("token-") && !ann.name().contains("hunter2"));
        assert_eq!(account("bearer hunter2"), Some(ann.clone()));
        assert_ne!(account("Bearer hunter3"), Some(ann));
        for line in ["", "Bearer", "Bearer =", "Bearer a b", "Bearer a,b", "Basic hunter2"] {
            assert_eq!(account(line), None, "{line:?}");
        }
        assert_eq!(account(&format!("Bearer {}", "a".repeat(TOKEN_BYTES_MAX + 1))), None);
    }

    #[test]
    fn the_account_of_a_token_stays_what_it_is() {
        // Another digest would give every account another name, and its payments would be nobody's.
        let account = Authentication::AnyToken.account_of(&headers(&["Bearer token"])).unwrap();
        assert_eq!(account.name(), "token-0a547535588f7c75e8f23e00362610b9");
    }

    #[test]
    fn a_file_with_a_mistake_is_refused_by_its_line_and_shows_no_token() {
        for (text, says) in [
            ("", "no account"),
            ("# only\n", "no account"),
            ("\nhunter2", "line 2"),
            ("hunter2 = ", "line 1"),
            ("hunter2 = a b", "line 1"),
            ("hunt er2 = a", "line 1"),
            (" = a", "line 1"),
            ("hunter2 = a\nhunter2 = b", "line 2"),
        ] {
            let error = Accounts::parse(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hunter2"), "{text:?}: {error}");
        }
        assert!(!format!("{:?}", Accounts::parse("hunter2 = a").unwrap()).contains("hunter2"));
    }
}
