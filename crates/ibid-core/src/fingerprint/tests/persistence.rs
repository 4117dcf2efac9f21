//! Secrets, and what is stored: fingerprints and recipes outlive the program that wrote them.

use super::*;
use crate::hex;

#[test]
fn another_secret_makes_another_fingerprint() {
    let other = Secrets::new(vec![Secret::new(b"fedcba9876543210").unwrap()]).unwrap();
    let recipe = Recipe::default();
    let stored = other.fingerprint(&recipe, Profile::Ietf, &post("{}"));
    assert_ne!(
        stored.to_bytes()[5..],
        secrets().fingerprint(&recipe, Profile::Ietf, &post("{}")).to_bytes()[5..]
    );
    assert!(!secrets().matches(&stored, &recipe, Profile::Ietf, &post("{}")));
    assert!(!secrets().holds(stored.secret()) && other.holds(stored.secret()));
}

#[test]
fn after_a_rotation_the_newest_writes_and_the_old_still_match() {
    let old = Secret::new(b"0123456789abcdef").unwrap();
    let new =
        Secret::new(b"a newer secret, longer than a block of the hash: 64 bytes and then some").unwrap();
    let before = Secrets::new(vec![old.clone()]).unwrap();
    let after = Secrets::new(vec![new.clone(), old.clone()]).unwrap();
    let recipe = Recipe::default();
    let stored = before.fingerprint(&recipe, Profile::Ietf, &post("[1]"));
    assert!(after.matches(&stored, &recipe, Profile::Ietf, &post("[1.0]")));
    assert!(!after.matches(&stored, &recipe, Profile::Ietf, &post("[2]")));
    assert_eq!(after.fingerprint(&recipe, Profile::Ietf, &post("[1]")).secret(), new.id());
    assert!(after.holds(old.id()) && !before.holds(new.id()));
}

#[test]
fn secrets_are_refused_when_short_missing_or_twice() {
    assert_eq!(Secret::new([7; 15]).unwrap_err(), SecretError::TooShort);
    assert_eq!(Secrets::new(vec![]).unwrap_err(), SecretError::NoSecret);
    let one = Secret::new([7; 16]).unwrap();
    assert_eq!(Secrets::new(vec![one.clone(), one.clone()]).unwrap_err(), SecretError::SameId(one.id()));
}

#[test]
fn debug_shows_neither_secret_nor_digest() {
    let secrets = secrets();
    let stored = secrets.fingerprint(&Recipe::default(), Profile::Ietf, &post("{}"));
    let id = stored.secret();
    assert_eq!(format!("{secrets:?}"), format!("Secrets([Secret {{ id: SecretId({id}), .. }}])"));
    assert_eq!(format!("{stored:?}"), format!("Fingerprint {{ version: 2, secret: SecretId({id}), .. }}"));
}

#[test]
fn a_fingerprint_of_an_unknown_version_or_length_is_not_read() {
    let bytes = secrets().fingerprint(&Recipe::default(), Profile::Ietf, &post("{}")).to_bytes();
    assert_eq!(Fingerprint::from_bytes(&bytes).unwrap().to_bytes(), bytes);
    for version in [0, 3, 255] {
        let mut bytes = bytes;
        bytes[0] = version;
        assert_eq!(Fingerprint::from_bytes(&bytes), None);
    }
    for len in 0..bytes.len() {
        assert_eq!(Fingerprint::from_bytes(&bytes[..len]), None);
    }
    assert_eq!(Fingerprint::from_bytes(&[&bytes[..], &[0]].concat()), None);
    let unknown = Fingerprint { version: 3, ..Fingerprint::from_bytes(&bytes).unwrap() };
    assert!(!secrets().matches(&unknown, &Recipe::default(), Profile::Ietf, &post("{}")));
}

#[test]
fn a_recipe_travels_with_its_record() {
    let recipe = Recipe::default()
        .with_header("Api-Version")
        .with_include(pointer("/a~1b/0"))
        .with_exclude(pointer("/a~1b/0/at"))
        .with_body(BodyRule::Raw);
    for recipe in [recipe, Recipe::default()] {
        let bytes = minicbor::to_vec(&recipe).unwrap();
        assert_eq!(minicbor::decode::<Recipe>(&bytes).unwrap(), recipe);
    }
    // Pinned: records in stores are read by later programs.
    assert_eq!(hex::encode(&minicbor::to_vec(Recipe::default()).unwrap()), "8480808000");
}

/// Pinned: a stored fingerprint must match the same request for as long as its record lives, so none of these
/// may change without a new version.
#[test]
fn stored_fingerprints_stay_valid() {
    let order =
        post(r#"{"to":"ann","amount":12.50,"lines":[1E30,-0,"\u20ac"]}"#).with(|r| r.query = Some("a=b"));
    let plain = Recipe::default();
    let selected =
        Recipe::default().with_include(pointer("/to")).with_exclude(pointer("/at")).with_header("v");
    let excluding = Recipe::default().with_exclude(pointer("/to"));
    let empty = post("").with(|r| r.headers.clear());
    let soap = order.clone().header("soapaction", "Pay").header("x-http-method-override", "PUT");
    let account = order.clone().header("stripe-account", "acct_1").header("stripe-context", "c");
    let (ietf, stripe) = (Profile::Ietf, Profile::Stripe);
    // Version 1 digests neither `SOAPAction` nor an account, so its digests are the same with and without them.
    #[rustfmt::skip]
    let pinned = [
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "c96e4b8694054c414d8017696714c357e9aea14ec7f2ccacdc7bfad00345103a", &plain, ietf, &order),
        ("556324a52f6747d442fedcfa73dc716edcaa879688d2c66a50345513c23760b3", "8d9ecf9895dda64cd75354e0b27a3a0da3bbd7ee1180ff2e326c8ab6285e163c", &plain, ietf, &post("not json")),
        ("abfd68898908923958c555ebc2c982fe0b08ca40cc1f03429836694a942b25fc", "f63c6f657f1eeba9125ea01ddad686acebe5881bc0e9a8ed540ae8be65867668", &plain, ietf, &form("x", FORM)),
        ("2296892aa7b2a80ca953cb9f142eaf097de018152e6d259d0d75ad9d7dd1cb4d", "a8993bbe723deda711889df12329dee0cfa3789642912b04aae6a5085c40d9f1", &selected, ietf, &order.clone().header("v", "2")),
        ("f128ec9c10ae7a3f3dba213a992e1bc0206ac2ee78bc2d3ab9ec4f99773a74ab", "3962adc93b8ed3dcf23f8f6759417030e0df4774376c3d268383b3bf93cb4f89", &excluding, ietf, &order),
        ("a0ae5c97f9168fbbd9ab8157caeb3aad4723370e6fe62f29fde739aaed9a81c2", "8c9d025e6b3906aa02cf3a4eebd2f0757c74af204562ded6db657286642e9071", &plain, ietf, &empty),
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "fa6d098b44c3ea0faadc033a6ed6e79c7d7ea28e89475026d2bce0ae8308c7f8", &plain, ietf, &soap),
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "2e3233eedef181a553e923778fa69e5376a645d1f77da245918863f0f97dee05", &plain, stripe, &account),
    ];
    for (at, (first, second, recipe, profile, request)) in pinned.into_iter().enumerate() {
        let made = hex::encode(&secrets().fingerprint(recipe, profile, request).to_bytes());
        assert_eq!(made, format!("023c01134d{second}"), "request {at}");
        for stored in [format!("013c01134d{first}"), made] {
            let stored =
                Fingerprint::from_bytes(&hex::decode(&stored).expect("digits")).expect("a known version");
            assert!(secrets().matches(&stored, recipe, profile, request), "request {at}, {stored:?}");
            assert!(!secrets().matches(&stored, recipe, profile, &post("another")), "request {at}");
        }
    }
}
