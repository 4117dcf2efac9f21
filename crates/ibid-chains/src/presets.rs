//! The rules of `behind = "…"`, with the operator's lines in the proxy's configuration: what they prove, and what they must
//! not accept as proof.

use ibid_testkit::client::TestRequest;
use ibid_testkit::hop::{Proxy, ProxyHopOptions};
use ibid_testkit::upstream::ReservedPort;

use crate::Selection;
use crate::chain::{Story, Trouble, describe};
use crate::page::Table;

/// The situations that a rule has to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    Refused,
    Overload,
    OwnAnswer,
    Forged,
    TriedAgain,
}

impl Situation {
    const ALL: [Situation; 5] = [
        Situation::Refused,
        Situation::Overload,
        Situation::OwnAnswer,
        Situation::Forged,
        Situation::TriedAgain,
    ];

    fn name(self) -> &'static str {
        match self {
            Situation::Refused => "connection refused",
            Situation::Overload => "the hop is full",
            Situation::OwnAnswer => "the application executes and answers 503",
            Situation::Forged => "the same, and it forges the field",
            Situation::TriedAgain => "the hop tries twice, refused at last",
        }
    }

    fn is_proven(self) -> bool {
        matches!(self, Situation::Refused | Situation::Overload)
    }

    fn trouble(self) -> Trouble {
        match self {
            Situation::Refused | Situation::TriedAgain => Trouble::Refused,
            Situation::Overload => Trouble::Full,
            Situation::OwnAnswer | Situation::Forged => Trouble::Fixture,
        }
    }

    fn request(self, proxy: Proxy, path: &str) -> TestRequest {
        let fixture = match self {
            Situation::OwnAnswer => "once;status=503".to_owned(),
            Situation::Forged => format!("once;status=503;header=X-Ibid-Hop: {}", proxy.proof()),
            _ => "status=201".to_owned(),
        };
        TestRequest::post(path).key(&path[1..]).fixture(&fixture).body("amount=1")
    }
}

pub(crate) async fn run(asked: &Selection, problems: &mut Vec<String>) -> Table {
    let columns = &[
        "`behind`",
        "situation",
        "it answers",
        "`X-Ibid-Hop`",
        "delivered",
        "the key",
        "a retry gets",
        "delivered in all",
    ];
    let mut table = Table::new("presets", columns);
    for proxy in Proxy::WITH_PRESET.into_iter().filter(|proxy| asked.wants(proxy.name())) {
        for situation in Situation::ALL {
            // Apache with one backend has no second try.
            if (proxy, situation) == (Proxy::Apache, Situation::TriedAgain) {
                continue;
            }
            let story = play(asked, proxy, situation).await;
            let about = |what| format!("behind {}, {}: {what}", proxy.name(), situation.name());
            if (story.state == "retryable") != situation.is_proven() {
                problems.push(about(format!("the key was left {}", story.state)));
            }
            problems.extend(story.problem().map(about));
            let field = story.alone.as_ref().map(|answer| answer.header_lines("x-ibid-hop").join(" and "));
            // nginx's connect time differs from run to run.
            let field =
                field.map(|field| field.replace(|c: char| field.contains("[0.") && c.is_ascii_digit(), "0"));
            table.push(vec![
                proxy.name().to_owned(),
                situation.name().to_owned(),
                describe(story.alone.as_ref()),
                field
                    .filter(|field| !field.is_empty())
                    .map_or("none".to_owned(), |field| format!("`{field}`")),
                story.delivered.to_string(),
                story.state,
                describe(Some(&story.retry)),
                story.in_all.to_string(),
            ]);
        }
    }
    table
}

async fn play(asked: &Selection, proxy: Proxy, situation: Situation) -> Story {
    // nginx then tries another address, at which nothing listens either.
    let other = ReservedPort::port();
    let options = ProxyHopOptions {
        proves: true,
        one_at_a_time: situation == Situation::Overload,
        tries_again: (situation == Situation::TriedAgain).then(|| other.addr()),
    };
    let behind = format!("behind = \"{}\"", proxy.name());
    let request = |path: &str| situation.request(proxy, path);
    Story::play(&asked.ibid, Some((proxy, options)), &behind, situation.trouble(), request).await
}
