//! `--every`: repeats the comparison, with gauges for the differences and the time of the last round.

use std::convert::Infallible;
use std::io::{Write, stderr, stdout};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use ibid::telemetry;
use ibid_ledger::{ComparisonReport, DifferenceKind};
use metrics::gauge;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use super::{Plan, print};
use crate::config::units::show_duration;
use crate::gateway::admin::{self, Metrics};
use crate::gateway::{ADMIN_LIMITS, bind, server};
use crate::output::{Failure, Failures, print_line};

/// Compares every `length` until the process receives a stop signal. A failed round is printed, and the next one runs.
pub(super) async fn run(plan: Plan, length: Duration, admin: Option<SocketAddr>) -> Result<(), Failures> {
    let metrics = Metrics::install()?;
    let mut stop = std::pin::pin!(crate::stop_signal()?);
    let admin = match admin {
        Some(address) => Some(serve(address, metrics).await?),
        None => None,
    };
    let admin_text = admin.map(|address| format!(", admin on {address}")).unwrap_or_default();
    print_line(&mut stderr(), format_args!("ibid: comparing every {}{admin_text}", show_duration(length)))?;
    let mut ticker = tokio::time::interval(length);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            _ = ticker.tick() => {}
        }
        let (round, here) = (plan.clone(), Handle::current());
        // Files and SQLite are read on a separate thread, so that metrics are served meanwhile.
        let mut round = tokio::task::spawn_blocking(move || here.block_on(one(&round)));
        let ended = tokio::select! {
            () = &mut stop => {
                plan.stopped.store(true, Ordering::Relaxed);
                return Ok(());
            }
            ended = &mut round => ended,
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(failures)) => print_failures(&failures),
            Err(panic) => return Err(Failure::world("a comparison ended early").because(panic).into()),
        }
    }
}

async fn one(plan: &Plan) -> Result<(), Failures> {
    let (report, letters) = plan.compare().await?;
    set_gauges(&plan.args.source, &report);
    let out = &mut stdout();
    match plan.args.json {
        // One line per round, so that a program can tell one from the next.
        true => print_line(out, print::json(&report, letters))?,
        false => print::table(&report, letters, out, &mut stderr())?,
    }
    Ok(())
}

fn set_gauges(source: &str, report: &ComparisonReport) {
    for kind in DifferenceKind::ALL {
        let labels = [("source", source.to_owned()), ("kind", kind.name().to_owned())];
        gauge!(telemetry::LEDGER_DIFFERENCES, &labels).set(report.count(kind) as f64);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    gauge!(telemetry::CHORE_LAST_RUN, "chore" => "ledger").set(now);
}

async fn serve(address: SocketAddr, metrics: Metrics) -> Result<SocketAddr, Failure> {
    let listener = bind(address, "--admin-listen").await?;
    let bound = listener.local_addr();
    let bound = bound.map_err(|error| Failure::world("cannot read a listener's address").because(error))?;
    let pages = tower::service_fn(move |request: Request<Incoming>| {
        let page = match request.uri().path() {
            "/metrics" => metrics.page(),
            "/healthz" => admin::text(StatusCode::OK, "ok\n"),
            _ => admin::text(StatusCode::NOT_FOUND, "not found: /healthz, /metrics\n"),
        };
        std::future::ready(Ok::<_, Infallible>(page))
    });
    tokio::spawn(server::serve(listener, pages, ADMIN_LIMITS, std::future::pending()));
    Ok(bound)
}

fn print_failures(failures: &Failures) {
    // A reader that closed the pipe needs no more output.
    let _ = write!(stderr(), "{failures}");
}
