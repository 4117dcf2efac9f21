//! Prints how long a fingerprint of a 2 KB order document takes, and for comparison an RFC 8785 canonicaliser that
//! reads numbers as doubles, in the same run. The figures are for reading, not for assertions: machines differ.
//!
//! ```console
//! cargo run --release -p ibid-core --example fingerprint_speed
//! ```

use std::hint::black_box;
use std::time::Instant;

use ibid_core::fingerprint::{Pointer, Recipe, RequestView, Secret, Secrets, json_exact};
use ibid_core::policy::Profile;

fn main() {
    let order = Order(order(2048));
    let secrets = Secrets::new(vec![Secret::new([7; 32]).expect("long enough")]).expect("one secret");
    let plain = Recipe::default();
    let selected = ["/lines/0/sku", "/customer", "/metadata/channel"]
        .into_iter()
        .fold(Recipe::default(), |recipe, text| recipe.with_include(Pointer::parse(text).expect("a pointer")))
        .with_exclude(Pointer::parse("/customer/email").expect("a pointer"));

    println!("order document of {} bytes, microseconds each, best of {ROUNDS} rounds", order.0.len());
    let row = |what: &str, micros: f64| println!("{what:<44}{micros:>8.2}");
    row("fingerprint", best(|| secrets.fingerprint(&plain, Profile::Ietf, &order)));
    row(
        "fingerprint, three pointers in, one out",
        best(|| secrets.fingerprint(&selected, Profile::Ietf, &order)),
    );
    row("json-exact text alone", best(|| json_exact::canonical(&order.0)));
    row(
        "serde_json + serde_json_canonicalizer",
        best(|| {
            let value: serde_json::Value = serde_json::from_slice(&order.0).expect("an order is JSON");
            serde_json_canonicalizer::to_vec(&value)
        }),
    );
}

/// Returns microseconds per call in the fastest round, the one least disturbed by everything else on the machine.
fn best<T>(call: impl Fn() -> T) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| drop(black_box(call())));
        start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// Returns an order document whose members are in the order in which people write them, which is not sorted.
fn order(len_min: usize) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut text = String::new();
    while text.len() < len_min {
        let n = lines.len();
        lines.push(format!(
            r#"{{"sku": "SKU-{n:05}", "quantity": {q}, "unit_price": {p}.{c:02}, "tax_rate": 0.19, "description": "Caf\u00e9 crème \"No. {n}\"", "gift": false}}"#,
            q = n + 1,
            p = 17 * n + 3,
            c = 7 * n % 100,
        ));
        text = format!(
            r#"{{"type": "order", "customer": {{"name": "Ann Example", "email": "ann@example.org", "id": 9007199254740993}}, "amount": 129900, "currency": "EUR", "lines": [{}], "metadata": {{"source": "web", "channel": null, "campaign": "spring"}}, "capture": true}}"#,
            lines.join(", ")
        );
    }
    text.into_bytes()
}

struct Order(Vec<u8>);

impl RequestView for Order {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/v1/orders"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        if name == "content-type" {
            each(b"application/json");
        }
    }
    fn body(&self) -> &[u8] {
        &self.0
    }
}

/// Number of rounds of which the best counts.
const ROUNDS: u32 = 50;

/// Number of calls in a round: enough that the clock's own cost vanishes.
const CALLS: u32 = 1000;
