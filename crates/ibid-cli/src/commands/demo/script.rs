//! The text that the demo prints: a shell script in which each command does what the comment above it says.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::DemoStore;
use super::application::TOKEN;

/// The addresses and names of everything that runs.
pub(super) struct Scene {
    pub(super) public: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) payments: SocketAddr,
    pub(super) provider: SocketAddr,
    pub(super) taken: Vec<SocketAddr>,
    pub(super) ibid: String,
    pub(super) store: DemoStore,
}

impl Scene {
    pub(super) fn script(&self) -> String {
        let mut script = Script(format!(
            "# ibid demo. Paste these lines into another terminal, in their order.\n\
             #   {}  the gateway, in front of an example payments API on {}\n\
             #   {}  the gateway's admin pages\n\
             #   {}  the reference application: payments and rides, with an outbox\n\
             #   {}  a simulated card processor: it takes the money and cuts the connection\n\
             #                   at the first request for each charge\n",
            self.public, self.api, self.admin, self.payments, self.provider
        ));
        for taken in &self.taken {
            script.say(&format!("{taken} is in use by another program, so a free port was chosen."));
        }
        if self.store.word == "\"$STORE\"" {
            script.say(
                "Set STORE to the URL of the store first: it may hold a password, so it is not printed.",
            );
        }
        self.gateway(&mut script);
        self.application(&mut script);
        script.0.push_str(match self.store.key_suffix.is_empty() {
            true => "\n# Ctrl-C here ends the demo and removes its stores.",
            false => "\n# Ctrl-C here ends the demo. Its records stay in the gateway's store.",
        });
        script.0
    }

    /// Adds the part about an API that knows nothing of keys, behind the gateway.
    fn gateway(&self, script: &mut Script) {
        let Scene { public, admin, ibid, store, .. } = self;
        script.chapter("An API that knows nothing of keys, behind the gateway.");
        let first =
            self.pay_guarded("order-1", r#"{"customerId":"ann","amountCents":4200,"currency":"EUR"}"#);
        script.act("A first call. 201: a payment is made.", first.clone());
        script.act(
            "The same call again, as after a dropped connection. The same 201 with the same id, and\n\
             `idempotent-replayed: true`: no second payment.",
            first,
        );
        script.act(
            "The same key for another amount. 422: neither replayed nor forwarded.",
            self.pay_guarded("order-1", r#"{"customerId":"ann","amountCents":9900,"currency":"EUR"}"#),
        );
        let slow = r#"{"customerId":"bob","amountCents":1500,"currency":"EUR","simulate":"slow"}"#;
        let slow = self.pay_guarded("order-2", slow);
        script.act(
            "Two at once, to an API that takes 2 seconds. 201 twice with one id: the second waited.",
            format!("( {slow} & {slow} & wait )"),
        );
        let lost = r#"{"customerId":"cat","amountCents":7700,"currency":"EUR","simulate":"lost"}"#;
        let lost = self.pay_guarded("order-3", lost);
        script.act(
            "A lost response: the API takes the money and cuts the connection. 502 `outcome-unknown`.",
            lost.clone(),
        );
        script.act(
            "The retry. 409 `outcome-unknown`: ibid can't know the outcome, so it does not charge twice.",
            lost.clone(),
        );
        script.act(
            "The payments that were made: 3 for 7 requests, one for each key.",
            format!("curl -sS {}", quote(&format!("http://{public}/payments"))),
        );
        script.act(
            "A client may ask for the state of its key: the unknown one.",
            self.look(&format!("/.ibid/keys/order-3{}?method=POST&path=/payments", self.store.key_suffix)),
        );
        script.act(
            "The gateway's counters.",
            format!("curl -sS {} | grep '^ibid_reserve'", quote(&format!("http://{admin}/metrics"))),
        );
        script.act("The operator's view.", format!("{ibid} keys list --store {}", store.word));
    }

    /// Adds the part about the library inside an application, and a processor that fails at first.
    fn application(&self, script: &mut Script) {
        let Scene { payments, provider, .. } = self;
        script.chapter("The reference application: the library in axum, with its own tables and an outbox.");
        let first =
            self.ask("payments", "order-1", r#"{"customerId":"dan","amountCents":4200,"currency":"EUR"}"#);
        script.act(
            "A payment. 201 `pending`: the payment, its response and the charge still to be made were\n\
             committed together; the processor had not been called yet.",
            first.clone(),
        );
        let url = quote(&format!("http://{payments}/payments?customerId=dan"));
        script.act(
            "The processor takes the money and cuts the connection. A little later the worker retries\n\
             under the same key. `succeeded`, with the charge's id.",
            format!("until curl -sS {} {url} | grep '\"succeeded\"'; do sleep 0.2; done", token()),
        );
        script.act("The client's retry. The first response again, and `idempotent-replayed: true`.", first);
        script.act(
            "The same key for another amount. 422.",
            self.ask("payments", "order-1", r#"{"customerId":"dan","amountCents":9900,"currency":"EUR"}"#),
        );
        let ride = concat!(
            r#"{"customerId":"eve","amountCents":1800,"currency":"EUR","#,
            r#""origin":"Main St 1","destination":"Harbour 9"}"#
        );
        let ride = self.ask("rides", "ride-1", ride);
        script.act(
            "A ride calls the processor itself, between two transactions. The processor takes the money\n\
             and cuts the connection. 503: the ride is booked, and whether it is paid is not known.",
            ride.clone(),
        );
        script.act("The retry continues after the last committed phase. 201 with a receipt.", ride);
        script.act(
            "The processor's charges: 2 for 4 requests.",
            format!("curl -sS -w '\\n' {}", quote(&format!("http://{provider}/charges"))),
        );
    }

    /// Returns the command for a payment through the gateway.
    fn pay_guarded(&self, key: &str, body: &str) -> String {
        let key = format!("{key}{}", self.store.key_suffix);
        post(&format!("http://{}/payments", self.public), "", &key, body)
    }

    /// Returns the command for a payment or a ride of the application's one account.
    fn ask(&self, what: &str, key: &str, body: &str) -> String {
        post(&format!("http://{}/{what}", self.payments), &format!("{} ", token()), key, body)
    }

    fn look(&self, path: &str) -> String {
        format!("curl -sS -w '\\n' {}", quote(&format!("http://{}{path}", self.public)))
    }
}

/// The text of the script so far.
struct Script(String);

impl Script {
    fn say(&mut self, text: &str) {
        for line in text.lines() {
            let _ = writeln!(self.0, "# {line}");
        }
    }

    fn chapter(&mut self, name: &str) {
        let _ = writeln!(self.0);
        self.say(&format!("== {name}"));
    }

    fn act(&mut self, says: &str, command: String) {
        let _ = writeln!(self.0);
        self.say(says);
        let _ = writeln!(self.0, "{command}");
    }
}

/// Returns the command for a request with a key, which prints the whole response.
fn post(url: &str, more: &str, key: &str, body: &str) -> String {
    // The last line of a response has no line end, and a prompt right behind it is hard to read.
    format!(
        "curl -sS -i -w '\\n' {} {more}-H 'Idempotency-Key: \"{key}\"' \
         -H 'Content-Type: application/json' -d {}",
        quote(url),
        quote(body)
    )
}

/// Returns curl's argument for the account's token.
fn token() -> String {
    format!("-H 'Authorization: Bearer {TOKEN}'")
}

/// Quotes a text so that it is one word to a shell.
pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word_whatever_is_in_it() {
        assert_eq!(quote("it's $HOME"), r"'it'\''s $HOME'");
    }
}
