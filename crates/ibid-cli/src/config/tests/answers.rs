//! `not_replayed`, `fingerprint_headers` and `[cors]`: the meaning of each value, and the refused values.

use ibid::http::Cors;

use super::*;

#[test]
fn header_names_are_taken_without_regard_to_case() {
    let config = more(
        "[defaults]\nnot_replayed = [\"X-CSRF-Token\", \"x-auth-token\"]\n[[route]]\nmatch = \"POST /x\"\nnot_replayed = [\"X-Nonce\"]",
    );
    assert_eq!(config.defaults.not_replayed, ["x-csrf-token", "x-auth-token"]);
    assert_eq!(config.routes[0].policy.not_replayed, ["x-nonce"], "a key replaces what `[defaults]` says");
    for key in ["not_replayed", "fingerprint_headers"] {
        let message = format!("ibid.toml:5: `{key}` holds `x y`, which is not a header name");
        assert_eq!(refusal(&format!("[defaults]\n{key} = [\"x y\"]")), message);
        let message = format!("ibid.toml:5: `{key}` must be an array of strings");
        assert_eq!(refusal(&format!("[defaults]\n{key} = \"x\"")), message);
    }
}

#[test]
fn cors_is_off_unless_origins_are_named() {
    let shop = || Cors::new(["https://shop.example", "http://127.0.0.1:5173"]).unwrap();
    let listed = "[cors]\norigins = [\"https://shop.example\", \"http://127.0.0.1:5173\"]\n";
    for (text, cors) in [
        ("", Cors::default()),
        ("[cors]\norigins = []", Cors::default()),
        ("[cors]\norigins = [\"*\"]", Cors::new(["*"]).unwrap()),
        (listed, shop()),
        (&format!("{listed}credentials = true"), shop().credentials().unwrap()),
        (&format!("{listed}max_age = \"0s\""), shop().max_age(Duration::ZERO)),
    ] {
        assert_eq!(more(text).cors, cors, "{text}");
    }
    for (text, message) in [
        ("[cors]\ncredentials = true", "ibid.toml:4: `[cors]` allows no origin: it has no `origins`"),
        ("[cors]\norigin = \"https://a\"", "ibid.toml:5: `origin` is not a key of `[cors]`"),
        ("[cors]\norigins = \"https://a\"", "ibid.toml:5: `origins` must be an array of strings"),
        (
            "[cors]\norigins = [\"https://a/\"]",
            "ibid.toml:5: `origins`: `https://a/` is not an origin: write `https://shop.example`, with a port only if it is not the scheme's own",
        ),
        (
            "[cors]\norigins = [\"*\", \"https://a\"]",
            "ibid.toml:5: `origins`: `*` means every origin and stands alone",
        ),
        (
            "[cors]\norigins = [\"*\"]\ncredentials = true",
            "ibid.toml:6: `credentials`: credentials need origins by name: browsers refuse them with `*`",
        ),
    ] {
        assert_eq!(refusal(text), message, "{text}");
    }
}

#[test]
fn forward_key_takes_a_word_or_a_header_name() {
    for (text, shown) in [
        ("", "auto"),
        ("forward_key = \"auto\"", "auto"),
        ("forward_key = \"as-sent\"", "as-sent"),
        ("forward_key = \"off\"", "off"),
        ("forward_key = \"header:Ibid-Key\"", "header:ibid-key"),
        ("forward_key = \"header:Idempotency-Key\"", "header:idempotency-key"),
    ] {
        assert_eq!(more(&format!("[defaults]\n{text}")).defaults.forward_key.to_string(), shown, "{text}");
    }
    for (value, message) in [
        ("as_sent", "ibid.toml:5: `forward_key` is \"as_sent\", which is no way to forward a key"),
        ("body:/key", "ibid.toml:5: `forward_key` is \"body:/key\", which is no way to forward a key"),
        ("header:x y", "ibid.toml:5: `forward_key`: `x y` is not a header name"),
        (
            "header:Content-Length",
            "ibid.toml:5: `forward_key`: `content-length` can't carry the key: the field means something else",
        ),
        ("header:X-Tenant-Id", "`x-tenant-id` can't carry both the tenant and the key"),
    ] {
        assert_eq!(refusal(&format!("[defaults]\nforward_key = \"{value}\"")), message, "{value}");
    }
}
