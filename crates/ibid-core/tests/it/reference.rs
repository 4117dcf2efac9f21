//! Generates the reference page of refusals from the code; `IBID_BLESS=1` writes it again.

use std::fmt::Write as _;
use std::path::Path;

use ibid_core::policy::Profile;
use ibid_core::refusal::{ALL, Refusal};

#[test]
fn the_page_of_refusals_matches_the_code() {
    let mut page = String::from(
        "# Refusals\n\n\
         Why a client is turned away. In profile `ietf` a refusal is `application/problem+json` (RFC 9457): `type` is \
         `urn:ibid:problem:` and the code, `retry` says what to do next. Profile `stripe` answers in Stripe's shape. Every \
         refusal carries `Cache-Control: no-store` and a `Link` to its page under `/.ibid/problems/`; 409 also links the \
         status page of the client's own record (`rel=\"monitor\"`). A request that passes unguarded gets the gateway's own \
         502, 503 or 504 under the same types, without `retry` and `Link`.\n\n\
         | code | `ietf` | `stripe` | retry | `Retry-After` | meaning |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for refusal in ALL {
        let retry = refusal.advice().name();
        let status = |profile| match refusal {
            Refusal::UpstreamUncertain { .. } => "502, 504 after a time-out".to_owned(),
            refusal => refusal.status(profile).to_string(),
        };
        let after = if refusal.retry_after().is_some() { "yes" } else { "" };
        let (title, detail) = (refusal.title(), refusal.detail());
        let (ietf, stripe) = (status(Profile::Ietf), status(Profile::Stripe));
        writeln!(
            page,
            "| `{}` | {ietf} | {stripe} | `{retry}` | {after} | **{title}.** {detail} |",
            refusal.code()
        )
        .expect("a String takes every character");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/refusals.md");
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/refusals.md is stale: run with IBID_BLESS=1");
}
