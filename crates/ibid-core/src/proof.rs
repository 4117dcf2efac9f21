//! Proof of a request's outcome, from the header fields of a response.
//!
//! A proof is either the upstream's own statement (`Ibid-Outcome`), or a field that a proxy between ibid and the
//! upstream sets on its own errors.
//!
//! A status alone proves little. Envoy, Varnish and Apache's FastCGI proxy send 503 when the upstream dies after it
//! took the request, and timeout middleware sends 503 or 408 while the handler is working. The table of proxies is
//! [`PRESETS`]; `scripts/chains` measures it against the real programs.

use minicbor::{Decode, Encode};

use crate::policy::{Policy, PolicyError};

/// Field in which an upstream states the outcome of a request, in lower case.
///
/// `not-executed` releases the key and `executed` makes the response final, whatever the status. The field is never
/// passed to the client, never stored, and never read from a trailer.
pub const OUTCOME_FIELD: &str = "ibid-outcome";

/// Proof of the outcome of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The request was executed: the response is final, whatever its status.
    Executed,
    /// Nothing was executed: the key is released.
    NotExecuted,
}

/// An operator's rule about a field that a hop sets on its own errors, and removes from the upstream's responses.
///
/// The rule holds for a response with one of these statuses that has exactly one line of the field, whose whole value
/// is one of these. `UF,URX` is not `UF`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotExecutedWhen {
    /// Statuses of such a response.
    #[n(0)]
    pub status: Vec<u16>,
    /// Name of the field, in lower case.
    #[n(1)]
    pub header: String,
    /// Values that prove that nothing was sent on.
    #[n(2)]
    pub values: Vec<String>,
}

impl NotExecutedWhen {
    /// Checks that the rule can hold at all, and only for errors.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        let refuse = |problem: &str| Err(PolicyError::new("not_executed_when", problem));
        if self.status.is_empty() || self.values.is_empty() {
            return refuse("needs at least one status and one value");
        }
        if let Some(status) = self.status.iter().find(|status| !(400..600).contains(*status)) {
            return refuse(&format!("names `{status}`, which is not an error status"));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if self.header.is_empty() || !self.header.bytes().all(is_name) {
            return refuse(&format!("names `{}`, which is not a header name", self.header));
        }
        if self.header.eq_ignore_ascii_case(OUTCOME_FIELD) {
            return refuse("names `Ibid-Outcome`, which is believed without a rule");
        }
        if self.values.iter().any(|value| value.trim() != value || value.is_empty()) {
            return refuse("has a value that no field line can have: empty, or with spaces around it");
        }
        Ok(())
    }
}

/// The proxy that ibid forwards to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum Hop {
    /// nginx, forwarding with `proxy_pass`.
    #[n(0)]
    Nginx,
    /// HAProxy in HTTP mode.
    #[n(1)]
    Haproxy,
    /// Envoy as an HTTP proxy.
    #[n(2)]
    Envoy,
    /// Apache httpd with `proxy_http`; never `proxy_fcgi`.
    #[n(3)]
    Apache,
    /// Varnish. It resends requests without a body by itself, and proves nothing.
    #[n(4)]
    Varnish,
}

/// The measured rules of one [`Hop`], and the configuration that its operator has to add for them.
#[derive(Debug)]
pub struct HopPreset {
    /// Proxy that the rules are about.
    pub hop: Hop,
    /// Name of the proxy in a configuration.
    pub name: &'static str,
    /// Rules for its own responses that prove that nothing was sent on.
    pub rules: &'static [HopRule],
    /// Field that shows how often it sent a request on; `None` if it cannot show that.
    pub tries: Option<Tries>,
    /// Lines that its operator adds to its configuration; empty if there are none that help.
    pub lines: &'static str,
    /// Warning to the operator; printed at start and by `ibid config check`.
    pub warning: Option<&'static str>,
}

/// A built-in rule like [`NotExecutedWhen`].
#[derive(Debug)]
pub struct HopRule {
    /// Statuses of such a response.
    pub status: &'static [u16],
    /// Name of the field, in lower case.
    pub header: &'static str,
    /// Values that prove that nothing was sent on.
    pub values: &'static [&'static str],
}

/// Field by which a hop shows how often it sent a request on.
#[derive(Debug)]
pub struct Tries {
    /// Name of the field, in lower case.
    pub header: &'static str,
    /// Returns whether a value of the field means at most one try.
    pub is_once: fn(&str) -> bool,
}

impl Hop {
    /// Returns the row of this hop in [`PRESETS`].
    pub fn preset(self) -> &'static HopPreset {
        match self {
            Hop::Nginx => &PRESETS[0],
            Hop::Haproxy => &PRESETS[1],
            Hop::Envoy => &PRESETS[2],
            Hop::Apache => &PRESETS[3],
            Hop::Varnish => &PRESETS[4],
        }
    }

    /// Returns the fields that this hop adds for ibid, in lower case. They are for ibid alone, so they are neither
    /// passed to clients nor stored.
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        let preset = self.preset();
        let rules = preset.rules.iter().map(|rule| rule.header);
        rules.chain(preset.tries.iter().map(|tries| tries.header))
    }
}

/// Field by which a hop reports the outcome of a try, in lower case. The operator's lines set it on every response.
pub const HOP_FIELD: &str = "x-ibid-hop";

/// All hops with measured rules, in the order of the documentation.
///
/// A row may claim only what was measured: each of its values was seen on responses to requests that reached no
/// upstream, and never on a response to one that did.
pub static PRESETS: [HopPreset; 5] = [
    HopPreset {
        hop: Hop::Nginx,
        name: "nginx",
        // The time to connect, in brackets: `-` if no connection was made, nothing if none was tried (`limit_conn`).
        // Several tries are separated by `, `, and several server groups by ` : `.
        rules: &[HopRule { status: &[502, 503, 504], header: HOP_FIELD, values: &["[-]", "[]"] }],
        tries: Some(Tries { header: HOP_FIELD, is_once: |value| !value.contains([',', ':']) }),
        lines: "proxy_hide_header X-Ibid-Hop;\nadd_header X-Ibid-Hop \"[$upstream_connect_time]\" always;",
        warning: None,
    },
    HopPreset {
        hop: Hop::Haproxy,
        name: "haproxy",
        // Its own 503 means that no server accepted the connection, or that the queue was full. With `retry-on`, a try
        // before the last may have been sent, so the number of retries must be 0; `+1` went to another server.
        rules: &[HopRule { status: &[503], header: HOP_FIELD, values: &["own/0"] }],
        tries: Some(Tries { header: HOP_FIELD, is_once: |value| value.ends_with("/0") }),
        lines: "retries 0\n\
                http-response set-header X-Ibid-Hop \"passed/%rc\"\n\
                http-error status 503 content-type text/plain hdr X-Ibid-Hop \"own/%rc\" string \"unavailable\"",
        warning: None,
    },
    HopPreset {
        hop: Hop::Envoy,
        name: "envoy",
        // UF: connection failed. UH: no healthy host. UO: circuit breaker. A second try after a reset can end in UF,
        // too, so the number of tries is part of the value.
        rules: &[HopRule { status: &[503], header: HOP_FIELD, values: &["UF/1", "UH/1", "UO/1"] }],
        tries: Some(Tries {
            header: HOP_FIELD,
            is_once: |value| value.ends_with("/1") || value.ends_with("/0"),
        }),
        lines: "response_headers_to_add:\n\
                - header: { key: x-ibid-hop, value: \"%RESPONSE_FLAGS%/%UPSTREAM_REQUEST_ATTEMPT_COUNT%\" }\n  \
                append_action: OVERWRITE_IF_EXISTS_OR_ADD",
        warning: None,
    },
    HopPreset {
        hop: Hop::Apache,
        name: "apache",
        // proxy_http sets a note with its source port before it reads a response, so a 503 without that note reached no
        // upstream. proxy_fcgi sets no such note, and its 503 may follow the work: the condition on the file name
        // excludes it.
        rules: &[HopRule { status: &[503], header: HOP_FIELD, values: &["own"] }],
        tries: None,
        lines: "Header unset X-Ibid-Hop\n\
                Header always set X-Ibid-Hop own \"expr=%{REQUEST_STATUS} -eq 503 && %{REQUEST_FILENAME} =~ \
                m|^proxy:https?://| && -z note('proxy-source-port')\"",
        warning: None,
    },
    HopPreset {
        hop: Hop::Varnish,
        name: "varnish",
        rules: &[],
        tries: None,
        lines: "",
        warning: Some(
            "Varnish sends a request without a body again by itself when a reused connection is closed under it, so such a \
             request may be executed twice before ibid can know; pass these requests to the upstream without Varnish",
        ),
    },
];

/// Result of reading the fields of one response for proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProofReading {
    /// Proof of the outcome, if there is one.
    pub proof: Option<Proof>,
    /// Reason why an `Ibid-Outcome` that was present is ignored.
    pub ignored: Option<IgnoredProof>,
}

/// Reason why an `Ibid-Outcome` is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IgnoredProof {
    /// The value is neither `executed` nor `not-executed`.
    UnknownValue,
    /// There is more than one field line.
    Repeated,
    /// `not-executed` is about one delivery, and the hop made several.
    Retried,
    /// The field came in a trailer, after the body.
    Trailer,
}

impl IgnoredProof {
    /// Returns the name that metrics use.
    pub fn name(self) -> &'static str {
        match self {
            IgnoredProof::UnknownValue => "unknown_value",
            IgnoredProof::Repeated => "repeated",
            IgnoredProof::Retried => "retried",
            IgnoredProof::Trailer => "trailer",
        }
    }
}

/// Reads what a response with this status proves under `policy`.
///
/// `lines` returns the values of all field lines of one name, which it gets in lower case.
pub fn read<'a>(policy: &Policy, status: u16, lines: impl Fn(&str) -> Vec<&'a [u8]>) -> ProofReading {
    let preset = policy.behind.map(Hop::preset);
    let tries = preset.and_then(|preset| preset.tries.as_ref());
    let tries_lines = tries.map(|tries| (tries, lines(tries.header)));
    let was_retried = tries_lines.as_ref().is_some_and(|(tries, lines)| {
        lines.iter().any(|line| !str::from_utf8(line).is_ok_and(|value| (tries.is_once)(value)))
    });
    let outcome_lines = lines(OUTCOME_FIELD);
    let (proof, ignored) = match outcome_lines[..] {
        [] => (None, None),
        [b"executed"] => (Some(Proof::Executed), None),
        [b"not-executed"] if was_retried => (None, Some(IgnoredProof::Retried)),
        [b"not-executed"] => (Some(Proof::NotExecuted), None),
        [_] => (None, Some(IgnoredProof::UnknownValue)),
        [..] => (None, Some(IgnoredProof::Repeated)),
    };
    if proof.is_some() || was_retried {
        return ProofReading { proof, ignored };
    }
    let holds = |statuses: &[u16], header: &str, is_value: &dyn Fn(&[u8]) -> bool| {
        statuses.contains(&status) && matches!(lines(header)[..], [line] if is_value(line))
    };
    let by_rule = policy.not_executed_when.iter().any(|rule| {
        holds(&rule.status, &rule.header, &|line| rule.values.iter().any(|value| value.as_bytes() == line))
    });
    let by_preset = preset.is_some_and(|preset| {
        preset.rules.iter().any(|rule| {
            holds(rule.status, rule.header, &|line| rule.values.iter().any(|value| value.as_bytes() == line))
        })
    });
    ProofReading { proof: (by_rule || by_preset).then_some(Proof::NotExecuted), ignored }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a response with these field lines.
    fn read_fields(policy: &Policy, status: u16, fields: &[(&str, &'static str)]) -> ProofReading {
        read(policy, status, |name| {
            fields.iter().filter(|(field, _)| *field == name).map(|(_, value)| value.as_bytes()).collect()
        })
    }

    fn proof(policy: &Policy, status: u16, fields: &[(&str, &'static str)]) -> Option<Proof> {
        read_fields(policy, status, fields).proof
    }

    fn behind(hop: Hop) -> Policy {
        Policy { behind: Some(hop), ..Policy::default() }
    }

    #[test]
    fn the_upstreams_word_counts_once_and_whole() {
        let policy = Policy::default();
        for (lines, expected, ignored) in [
            (&["executed"][..], Some(Proof::Executed), None),
            (&["not-executed"], Some(Proof::NotExecuted), None),
            (&["Not-Executed"], None, Some(IgnoredProof::UnknownValue)),
            (&["not-executed, not-executed"], None, Some(IgnoredProof::UnknownValue)),
            (&[""], None, Some(IgnoredProof::UnknownValue)),
            (&["not-executed", "not-executed"], None, Some(IgnoredProof::Repeated)),
            (&["executed", "not-executed"], None, Some(IgnoredProof::Repeated)),
            (&[], None, None),
        ] {
            let fields: Vec<_> = lines.iter().map(|line| (OUTCOME_FIELD, *line)).collect();
            for status in [200, 404, 500, 503] {
                let read = read_fields(&policy, status, &fields);
                assert_eq!((read.proof, read.ignored), (expected, ignored), "{status} {lines:?}");
            }
        }
    }

    #[test]
    fn a_rule_believes_one_line_compared_whole() {
        let rule = NotExecutedWhen {
            status: vec![503],
            header: "x-flags".into(),
            values: vec!["UF".into(), "UH".into()],
        };
        let policy = Policy { not_executed_when: vec![rule], ..Policy::default() };
        assert_eq!(proof(&policy, 503, &[("x-flags", "UF")]), Some(Proof::NotExecuted));
        assert_eq!(proof(&policy, 503, &[("x-flags", "UH")]), Some(Proof::NotExecuted));
        for (status, fields) in [
            (503, &[("x-flags", "UF,URX")][..]),
            (503, &[("x-flags", "uf")]),
            (503, &[("x-flags", "UF"), ("x-flags", "UF")]),
            (503, &[("x-flags", "UC"), ("x-flags", "UF")]),
            (503, &[("x-other", "UF")]),
            (502, &[("x-flags", "UF")]),
            (503, &[]),
        ] {
            assert_eq!(proof(&policy, status, fields), None, "{status} {fields:?}");
        }
    }

    #[test]
    fn the_upstreams_statement_overrides_a_rule() {
        let fields = [(OUTCOME_FIELD, "executed"), (HOP_FIELD, "[-]")];
        assert_eq!(proof(&behind(Hop::Nginx), 502, &fields), Some(Proof::Executed));
        let fields = [(OUTCOME_FIELD, "perhaps"), (HOP_FIELD, "[-]")];
        let read = read_fields(&behind(Hop::Nginx), 502, &fields);
        assert_eq!((read.proof, read.ignored), (Some(Proof::NotExecuted), Some(IgnoredProof::UnknownValue)));
    }

    #[test]
    fn a_preset_proves_a_single_try_that_sent_nothing() {
        for (hop, status, value) in [
            (Hop::Nginx, 502, "[-]"),
            (Hop::Nginx, 504, "[-]"),
            (Hop::Nginx, 503, "[]"),
            (Hop::Haproxy, 503, "own/0"),
            (Hop::Envoy, 503, "UF/1"),
            (Hop::Envoy, 503, "UH/1"),
            (Hop::Envoy, 503, "UO/1"),
            (Hop::Apache, 503, "own"),
        ] {
            assert_eq!(
                proof(&behind(hop), status, &[(HOP_FIELD, value)]),
                Some(Proof::NotExecuted),
                "{hop:?} {value}"
            );
            let twice = [(HOP_FIELD, value), (HOP_FIELD, value)];
            assert_eq!(
                proof(&behind(hop), status, &twice),
                None,
                "{hop:?}: the upstream sent the field, too"
            );
            assert_eq!(proof(&Policy::default(), status, &[(HOP_FIELD, value)]), None, "without a preset");
        }
    }

    #[test]
    fn a_preset_believes_nothing_else() {
        for (hop, status, value) in [
            (Hop::Nginx, 502, "[0.000]"),
            (Hop::Nginx, 504, "[0.001]"),
            (Hop::Nginx, 502, "[-, -]"),
            (Hop::Nginx, 502, "[0.000, -]"),
            (Hop::Nginx, 502, "[- : -]"),
            (Hop::Nginx, 201, "[]"),
            (Hop::Nginx, 502, "-"),
            (Hop::Haproxy, 503, "own/2"),
            (Hop::Haproxy, 503, "passed/0"),
            (Hop::Haproxy, 502, "own/0"),
            (Hop::Envoy, 503, "UC/1"),
            (Hop::Envoy, 503, "UF/2"),
            (Hop::Envoy, 503, "URX,UF/2"),
            (Hop::Envoy, 503, "UF,URX/1"),
            (Hop::Envoy, 504, "UT/1"),
            (Hop::Apache, 502, "own"),
            (Hop::Varnish, 503, "own"),
        ] {
            assert_eq!(proof(&behind(hop), status, &[(HOP_FIELD, value)]), None, "{hop:?} {status} {value}");
        }
    }

    #[test]
    fn not_executed_is_ignored_where_the_hop_tried_twice() {
        let outcome = (OUTCOME_FIELD, "not-executed");
        for (hop, once, twice) in [
            (Hop::Nginx, "[0.000]", "[0.000, 0.001]"),
            (Hop::Haproxy, "passed/0", "passed/+1"),
            (Hop::Envoy, "-/1", "-/2"),
        ] {
            let read = read_fields(&behind(hop), 503, &[outcome, (HOP_FIELD, twice)]);
            assert_eq!((read.proof, read.ignored), (None, Some(IgnoredProof::Retried)), "{hop:?}");
            assert_eq!(
                proof(&behind(hop), 503, &[outcome, (HOP_FIELD, once)]),
                Some(Proof::NotExecuted),
                "{hop:?}"
            );
            let executed = [(OUTCOME_FIELD, "executed"), (HOP_FIELD, twice)];
            assert_eq!(proof(&behind(hop), 503, &executed), Some(Proof::Executed), "{hop:?}");
        }
    }

    #[test]
    fn each_hop_has_the_row_of_its_name() {
        for preset in &PRESETS {
            assert_eq!(preset.hop.preset().name, preset.name);
            assert!(preset.rules.iter().all(|rule| rule.header == rule.header.to_ascii_lowercase()));
        }
    }
}
