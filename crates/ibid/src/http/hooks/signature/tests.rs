use http::HeaderValue;
use serde_json::Value;
use standardwebhooks::Webhook;

use super::*;

/// Reads the published cases; see `tests/data/webhooks/SOURCE`.
fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/webhooks/signing.json");
    let bytes = std::fs::read(path).expect("the vectors are part of the crate");
    serde_json::from_slice(&bytes).expect("vector files are JSON")
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
        .collect()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

/// Returns whether the case verifies; `case` says what differs from its base.
fn verdict(base: &Value, case: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let signed_at = base["timestamp"].as_i64().unwrap();
    let or = |name: &str, usual: String| case.get(name).map_or(usual, text);
    let mut fields = headers(&[
        ("webhook-id", &text(&base["id"])),
        ("webhook-timestamp", &or("timestamp_header", signed_at.to_string())),
        ("webhook-signature", &or("signature_header", text(&base["signature"]))),
    ]);
    if let Some(name) = case.get("omit") {
        fields.remove(text(name).as_str());
    }
    let (secret, body) = (text(&base["secret"]), text(&base["body"]));
    let secrets = [HookSecret::parse(&SignatureScheme::Standard, &secret).unwrap()];
    let now = at(signed_at + case.get("clock_offset_seconds").map_or(0, |offset| offset.as_i64().unwrap()));
    SignatureScheme::Standard.verify(&secrets, &fields, body.as_bytes(), now).is_some()
}

#[test]
fn published_test_vectors_verify_as_published() {
    let vectors = vectors();
    let list = |name: &str| vectors[name].as_array().unwrap().clone();
    let signed = list("sign");
    for base in &signed {
        assert!(verdict(base, &Value::Null), "{base}");
        let signer = Webhook::new(base["secret"].as_str().unwrap()).unwrap();
        let body = base["body"].as_str().unwrap().as_bytes();
        let signed = signer.sign(base["id"].as_str().unwrap(), base["timestamp"].as_i64().unwrap(), body);
        assert_eq!(signed.unwrap(), base["signature"].as_str().unwrap(), "the reference library signs alike");
    }
    let base = |case: &Value| &signed[case["base"].as_u64().unwrap() as usize];
    for case in list("verify_must_pass") {
        assert!(verdict(base(&case), &case), "{case}");
    }
    for case in list("verify_must_fail") {
        assert!(!verdict(base(&case), &case), "{case}");
    }
    for secret in list("secret_must_be_refused") {
        assert!(HookSecret::parse(&SignatureScheme::Standard, secret.as_str().unwrap()).is_err(), "{secret}");
    }
    assert_eq!(vectors["tolerance_seconds_in_reference_libraries"], TOLERANCE.as_secs());
}

#[test]
fn reference_signatures_verify_within_the_tolerance() {
    let (old, new) = ("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let secrets = [new, old].map(|text| HookSecret::parse(&SignatureScheme::Standard, text).unwrap());
    for secret in [old, new] {
        let signature = Webhook::new(secret).unwrap().sign("msg_1", 1_000_000, b"{}").unwrap();
        let fields = headers(&[
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", "1000000"),
            ("webhook-signature", &format!("v1a,AAAA {signature}")),
        ]);
        let verified = VerifiedHook { signed_at: Some(1_000_000), event: Some("msg_1".into()) };
        for now in [999_700, 1_000_000, 1_000_300] {
            assert_eq!(
                SignatureScheme::Standard.verify(&secrets, &fields, b"{}", at(now)),
                Some(verified.clone())
            );
        }
        for now in [999_699, 1_000_301] {
            assert_eq!(SignatureScheme::Standard.verify(&secrets, &fields, b"{}", at(now)), None);
        }
        let mut twice = fields.clone();
        twice.append("webhook-id", HeaderValue::from_static("msg_2"));
        assert_eq!(SignatureScheme::Standard.verify(&secrets, &twice, b"{}", at(1_000_000)), None);
        assert_eq!(SignatureScheme::Standard.verify(&secrets, &fields, b"{} ", at(1_000_000)), None);
        assert_eq!(SignatureScheme::Standard.verify(&[], &fields, b"{}", at(1_000_000)), None);
    }
}

#[test]
fn event_id_cannot_shift_bytes_into_the_body() {
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    // Signed as `a.5.6.{}`: once as (a, 5, `6.{}`), and read as (`a.5`, 6, `{}`).
    let signature = Webhook::new(secret).unwrap().sign("a", 5, b"6.{}").unwrap();
    let secrets = [HookSecret::parse(&SignatureScheme::Standard, secret).unwrap()];
    let read = |id, at_field, body: &[u8]| {
        let fields = headers(&[
            ("webhook-id", id),
            ("webhook-timestamp", at_field),
            ("webhook-signature", &signature),
        ]);
        SignatureScheme::Standard.verify(&secrets, &fields, body, at(5)).is_some()
    };
    assert!(read("a", "5", b"6.{}"));
    assert!(!read("a.5", "6", b"{}"));
}

/// Computes an HMAC-SHA-256 without the code under test.
fn digest(secret: &str, message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn as_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn stripe_signature_may_hold_several_signatures() {
    let secret = "whsec_test_0123456789";
    let secrets = [HookSecret::parse(&SignatureScheme::Stripe, secret).unwrap()];
    let good = as_hex(&digest(secret, b"1000000.{}"));
    let verify = |line: &str| {
        SignatureScheme::Stripe.verify(
            &secrets,
            &headers(&[("stripe-signature", line)]),
            b"{}",
            at(1_000_100),
        )
    };
    let verified = Some(VerifiedHook { signed_at: Some(1_000_000), event: None });
    assert_eq!(verify(&format!("t=1000000,v1={good}")), verified);
    assert_eq!(verify(&format!("t=1000000,v1={},v1={good},v0=00", "0".repeat(64))), verified);
    for bad in [
        format!("t=1000001,v1={good}"),
        format!("t=1000000,t=1000000,v1={good}"),
        format!("v1={good}"),
        format!("t=1000000,v0={good}"),
        format!("t=1000000,v1={}", &good[1..]),
        format!("t=1000000,v1={}", &good[2..]),
        "t=1000000".to_owned(),
        format!("t=+1000000,v1={good}"),
        String::new(),
    ] {
        assert_eq!(verify(&bad), None, "{bad}");
    }
    let late = SignatureScheme::Stripe.verify(
        &secrets,
        &headers(&[("stripe-signature", &format!("t=1000000,v1={good}"))]),
        b"{}",
        at(1_000_301),
    );
    assert_eq!(late, None);
}

#[test]
fn a_plain_signature_is_hex_or_base64() {
    let secret = "it's a secret, it really is";
    let plain = |prefix: &str, encoding, signed| {
        SignatureScheme::Hmac(PlainSignature {
            header: HeaderName::from_static("x-signature"),
            prefix: prefix.to_owned(),
            encoding,
            signed,
        })
    };
    let bare = plain("sha256=", SignatureEncoding::Hex, SignedContent::BodyAlone);
    let secrets = [HookSecret::parse(&bare, secret).unwrap()];
    let fields = headers(&[("x-signature", &format!("sha256={}", as_hex(&digest(secret, b"{}"))))]);
    let verified = Some(VerifiedHook { signed_at: None, event: None });
    assert_eq!(bare.verify(&secrets, &fields, b"{}", at(0)), verified, "nothing bounds it in time");
    assert_eq!(bare.verify(&secrets, &fields, b"{ }", at(0)), None);
    let slack = SignedContent::Timestamped {
        header: HeaderName::from_static("x-at"),
        before: "v0:".to_owned(),
        between: ":".to_owned(),
    };
    let timed = plain("", SignatureEncoding::Base64, slack);
    let signature = STANDARD.encode(digest(secret, b"v0:1000000:{}"));
    let verify = |at_field: &str, now| {
        let fields = headers(&[("x-signature", &signature), ("x-at", at_field)]);
        timed.verify(&secrets, &fields, b"{}", at(now)).is_some()
    };
    assert!(verify("1000000", 1_000_300));
    assert!(!verify("1000000", 1_000_301) && !verify("1000100", 1_000_100) && !verify("soon", 1_000_000));
}

#[test]
fn secrets_are_hidden_and_must_not_be_short() {
    let secret = HookSecret::parse(&SignatureScheme::Stripe, "whsec_sixteen_bytes_and_more").unwrap();
    assert_eq!(format!("{secret:?}"), "HookSecret(…)");
    assert_eq!(HookSecret::parse(&SignatureScheme::Stripe, "hunter2").err(), Some(HookSecretError::TooShort));
    assert_eq!(
        HookSecret::parse(&SignatureScheme::Standard, "whsec_!").err(),
        Some(HookSecretError::NotBase64)
    );
}
