//! Bursts of duplicates of one running key, compared with as many replays of one completed key, while another tenant sends
//! fresh keys.
//!
//! It runs in one process on the engine, so that all duplicates of a burst are there at once. Over HTTP the client would need as
//! many connections, and its cost would hide the engine's.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use ibid::Ibid;
use ibid::outcome::{Begin, Outcome};
use ibid_core::policy::Policy;
use ibid_core::scope::{Identity, Tenant};
use serde_json::json;
use tokio::task::JoinSet;

use crate::begin_load::{BeginLoad, in_histogram};
use crate::database::Database;
use crate::{BenchError, payment, round_figure};

/// Options of `ibid-bench burst`.
#[derive(Debug, Args)]
pub(crate) struct BurstArgs {
    /// `sqlite` or `postgres` (temporary), `sqlite:PATH` or `postgres://…`
    #[arg(long)]
    store: String,
    /// Requests of one burst, all at once
    #[arg(long, default_value = "5000")]
    duplicates: NonZeroU32,
    /// Duration of each measurement in seconds: bursts follow each other until it is over
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of measurements of each kind, in turn; the median counts
    #[arg(long, default_value = "3")]
    rounds: NonZeroU32,
    /// Callers of the other tenant
    #[arg(long, default_value = "8")]
    callers: NonZeroU32,
}

pub(crate) async fn run(args: &BurstArgs) -> Result<(), BenchError> {
    let database = Database::open(&args.store).await?;
    let ibid = payment::engine(database.store().await?).await?;
    let mut turns: [Vec<Turn>; 2] = Default::default();
    for _ in 0..args.rounds.get() {
        for (kind, turns) in [Kind::Replays, Kind::Duplicates].into_iter().zip(&mut turns) {
            let turn = measure(&ibid, args, kind).await?;
            println!("{}", turn.line(kind));
            turns.push(turn);
        }
    }
    let [replays, duplicates] = &turns;
    let refused: u64 = duplicates.iter().map(|turn| turn.refused).sum();
    let rate = median(duplicates, |turn| turn.rate) / median(replays, |turn| turn.rate);
    let p99 = median(duplicates, |turn| turn.other_p99) / median(replays, |turn| turn.other_p99);
    let verdict = json!({
        "what": "burst", "store": database.kind(), "duplicates": args.duplicates,
        "duplicates_per_second": median(duplicates, |turn| turn.rate).round(),
        "replays_per_second": median(replays, |turn| turn.rate).round(),
        "rate_ratio": round_figure(rate), "rate_ok": rate >= RATE_RATIO_MIN,
        "refused_503": refused, "refused_ok": refused == 0,
        "other_p99_us": median(duplicates, |turn| turn.other_p99),
        "other_p99_us_with_replays": median(replays, |turn| turn.other_p99),
        "other_p99_ratio": round_figure(p99), "other_p99_ok": p99 <= P99_RATIO_MAX,
    });
    println!("{verdict}");
    Ok(())
}

/// The requests of a burst.
#[derive(Clone, Copy)]
enum Kind {
    /// The key is completed.
    Replays,
    /// The key runs while the burst lasts.
    Duplicates,
}

/// Figures of one measurement.
struct Turn {
    bursts: u64,
    /// Requests of the bursts per second.
    rate: f64,
    /// Requests that got no answer from the engine, which a gateway answers with 503.
    refused: u64,
    /// The p99 of the other tenant's begins, in microseconds.
    other_p99: f64,
    other_keys: u64,
}

impl Turn {
    fn line(&self, kind: Kind) -> serde_json::Value {
        let kind = match kind {
            Kind::Replays => "replays",
            Kind::Duplicates => "duplicates",
        };
        json!({
            "what": "burst_turn", "kind": kind, "bursts": self.bursts, "per_second": self.rate.round(),
            "refused_503": self.refused, "other_keys": self.other_keys, "other_p99_us": self.other_p99,
        })
    }
}

async fn measure(ibid: &Ibid, args: &BurstArgs, kind: Kind) -> Result<Turn, BenchError> {
    let (policy, run) =
        (Arc::new(Policy::default()), SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
    let mut other = BeginLoad::start(ibid, &policy, &Tenant::new("other")?, args.callers.get())?;
    let (until, mut inside) = (Instant::now() + Duration::from_secs(args.seconds), Duration::ZERO);
    let (mut bursts, mut refused) = (0, 0);
    while bursts == 0 || Instant::now() < until {
        let identity = payment::identity_of(&Tenant::new("noisy")?, &format!("{run:020x}-{bursts:08x}"))?;
        let ask = ibid.ask(identity.clone(), policy.clone(), Arc::new(payment::Payment));
        let Begin::Run(mut attempt) = ibid.begin(ask).await? else {
            return Err("a fresh key was not fresh".into());
        };
        attempt.ensure_lease().await?;
        let mut running = Some(attempt);
        if matches!(kind, Kind::Replays) {
            finish(running.take()).await?;
        }
        let started = Instant::now();
        refused += burst(ibid, &policy, &identity, args.duplicates.get(), kind).await?;
        inside += started.elapsed();
        finish(running).await?;
        bursts += 1;
    }
    let took = in_histogram(&other.take())?;
    other.stop().await?;
    let rate = (bursts * u64::from(args.duplicates.get())) as f64 / inside.as_secs_f64();
    Ok(Turn {
        bursts,
        rate,
        refused,
        other_p99: took.value_at_quantile(0.99) as f64,
        other_keys: other.keys(),
    })
}

/// Sends one burst and waits for all answers. Returns how many requests were refused.
async fn burst(
    ibid: &Ibid,
    policy: &Arc<Policy>,
    identity: &Identity,
    count: u32,
    kind: Kind,
) -> Result<u64, BenchError> {
    let (mut running, mut refused) = (JoinSet::new(), 0);
    for _ in 0..count {
        let ask = ibid.ask(identity.clone(), policy.clone(), Arc::new(payment::Payment));
        let ibid = ibid.clone();
        running.spawn(async move { ibid.begin(ask).await });
    }
    while let Some(ended) = running.join_next().await {
        match (ended?, kind) {
            (Ok(Begin::Skip(Outcome::InFlight { .. })), Kind::Duplicates)
            | (Ok(Begin::Skip(Outcome::Completed(_))), Kind::Replays) => {}
            (Err(_), _) => refused += 1,
            (Ok(other), _) => return Err(format!("a request of a burst came to {other:?}").into()),
        }
    }
    Ok(refused)
}

async fn finish(attempt: Option<Box<ibid::Attempt>>) -> Result<(), BenchError> {
    let Some(attempt) = attempt else { return Ok(()) };
    match attempt.finish(payment::answer()).await {
        Outcome::Completed(_) => Ok(()),
        other => Err(format!("a finish came to {other:?}").into()),
    }
}

fn median(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    let mut figures: Vec<f64> = turns.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    // There is at least one turn.
    figures[figures.len() / 2]
}

/// Lowest rate of duplicates, as a part of the rate of replays.
const RATE_RATIO_MIN: f64 = 1.0 / 3.0;

/// Largest p99 of the other tenant during duplicates, against that during replays.
const P99_RATIO_MAX: f64 = 1.5;
