//! Every failure behind every proxy, with default settings.

use ibid_testkit::client::TestRequest;
use ibid_testkit::hop::{Proxy, ProxyHopOptions};

use crate::Selection;
use crate::chain::{Story, Trouble, describe};
use crate::page::Table;

/// Failure of the upstream, or of the proxy in front of it, at the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Refused,
    ResetBefore,
    CloseBefore,
    ReusedWithoutBody,
    ReusedWithBody,
    BrokenHead,
    ResetInBody,
    CloseInChunks,
    Garbage,
    TimeOut,
    Overload,
}

impl Failure {
    const ALL: [Failure; 11] = [
        Failure::Refused,
        Failure::ResetBefore,
        Failure::CloseBefore,
        Failure::ReusedWithoutBody,
        Failure::ReusedWithBody,
        Failure::BrokenHead,
        Failure::ResetInBody,
        Failure::CloseInChunks,
        Failure::Garbage,
        Failure::TimeOut,
        Failure::Overload,
    ];

    fn name(self) -> &'static str {
        match self {
            Failure::Refused => "connection refused",
            Failure::ResetBefore => "reset before the response",
            Failure::CloseBefore => "closed before the response",
            Failure::ReusedWithoutBody => "reused connection closed, request without body",
            Failure::ReusedWithBody => "reused connection closed, request with body",
            Failure::BrokenHead => "closed within the head",
            Failure::ResetInBody => "reset within the body",
            Failure::CloseInChunks => "closed within a chunked body",
            Failure::Garbage => "not HTTP",
            Failure::TimeOut => "the hop's time-out",
            Failure::Overload => "the hop is full",
        }
    }

    /// Returns the instruction to the upstream for the first request.
    fn fixture(self) -> &'static str {
        match self {
            Failure::Refused | Failure::Overload => "status=201",
            Failure::ResetBefore => "once;cut=read;rst",
            Failure::CloseBefore | Failure::ReusedWithoutBody | Failure::ReusedWithBody => "once;cut=read",
            Failure::BrokenHead => "once;cut=head",
            Failure::ResetInBody => "once;status=201;bytes=1000;cut=body;rst;pause=100",
            Failure::CloseInChunks => "once;status=201;bytes=1000;cut=chunk;pause=100",
            Failure::Garbage => "once;garbage;pause=100",
            Failure::TimeOut => "once;status=201;delay=3000",
        }
    }

    fn request(self, path: &str) -> TestRequest {
        let request = TestRequest::post(path).key(&path[1..]).fixture(self.fixture());
        if self == Failure::ReusedWithoutBody { request } else { request.body("amount=1") }
    }

    fn trouble(self) -> Trouble {
        match self {
            Failure::Refused => Trouble::Refused,
            Failure::Overload => Trouble::Full,
            Failure::ReusedWithoutBody | Failure::ReusedWithBody => Trouble::Reused,
            _ => Trouble::Fixture,
        }
    }

    async fn play(self, asked: &Selection, proxy: Option<Proxy>) -> Story {
        let options =
            ProxyHopOptions { one_at_a_time: self == Failure::Overload, ..ProxyHopOptions::default() };
        let hop = proxy.map(|proxy| (proxy, options));
        Story::play(&asked.ibid, hop, "", self.trouble(), |path| self.request(path)).await
    }

    /// Returns whether this failure can happen with this proxy.
    fn fits(self, proxy: Option<Proxy>) -> bool {
        match self {
            Failure::TimeOut => proxy.is_some(),
            // Caddy 2.6 has no limit.
            Failure::Overload => proxy.is_some_and(|proxy| proxy != Proxy::Caddy),
            _ => true,
        }
    }
}

/// Cases in which the hop sends a request again by itself, before the gateway can know. Go's HTTP client does so too, if the
/// request carries `Idempotency-Key`; the gateway renames that field for requests without a body.
const RESENDS: [(Proxy, Failure); 1] = [(Proxy::Varnish, Failure::ReusedWithoutBody)];

pub(crate) async fn run(asked: &Selection, problems: &mut Vec<String>) -> Table {
    let columns = &[
        "hop",
        "failure",
        "it answers",
        "delivered",
        "ibid answers",
        "the key",
        "a retry gets",
        "delivered in all",
    ];
    let mut table = Table::new("hops", columns);
    for proxy in [None].into_iter().chain(Proxy::ALL.map(Some)) {
        let name = proxy.map_or("none", Proxy::name);
        for failure in Failure::ALL.into_iter().filter(|failure| asked.wants(name) && failure.fits(proxy)) {
            let story = failure.play(asked, proxy).await;
            let resent = proxy.is_some_and(|proxy| RESENDS.contains(&(proxy, failure)));
            if !resent && story.in_all > 1 {
                problems.push(format!("{name}, {}: delivered {} times", failure.name(), story.in_all));
            }
            problems.extend(story.problem().map(|what| format!("{name}, {}: {what}", failure.name())));
            table.push(vec![
                name.to_owned(),
                failure.name().to_owned(),
                describe(story.alone.as_ref()),
                story.delivered.to_string(),
                describe(Some(&story.answer)),
                story.state,
                describe(Some(&story.retry)),
                if resent { format!("**{}**", story.in_all) } else { story.in_all.to_string() },
            ]);
        }
    }
    table
}
