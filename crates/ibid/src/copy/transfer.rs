//! Copies the rows of a closed source page by page, and compares them with what the target then holds.

use std::collections::HashSet;
use std::time::Duration;

use ibid_core::store::copy::{ClockShift, RowTotals};
use ibid_core::store::{Cursor, Page};

use super::marks::TargetMark;
use super::retry::retry;
use super::rows::{self, CopiedPart, PartRow};
use super::{CopyEnd, CopyError, CopyStep};
use crate::engine::Settings;
use crate::failpoint;
use crate::ibid::Ibid;
use crate::outbox::copy::replace_claim;
use crate::upkeep::sweep_once;

/// Fails if a store has rows.
pub(super) async fn check_empty(target: &CopyEnd) -> Result<(), CopyError> {
    for part in CopiedPart::ALL.into_iter().filter(|part| part.fits(&*target.store)) {
        each_page(target, part, async |rows| match rows.is_empty() {
            true => Ok(()),
            false => Err(CopyError::TargetUsed),
        })
        .await?;
    }
    Ok(())
}

/// Returns how many rows the source has that the target cannot hold. Fails if one of them must not be left behind.
pub(super) async fn check_left_behind(source: &CopyEnd, target: &CopyEnd) -> Result<u64, CopyError> {
    let mut count = 0;
    for part in CopiedPart::ALL.into_iter().filter(|part| !part.fits(&*target.store)) {
        each_page(source, part, async |rows| {
            let open = rows.iter().filter(|row| row.is_open()).count();
            if open > 0 {
                let what = if part == CopiedPart::Effects { "open effects" } else { "open evidence" };
                return Err(CopyError::Unsupported { what, count: open });
            }
            count += rows.len() as u64;
            Ok(())
        })
        .await?;
    }
    Ok(count)
}

/// Fails if the source has a row that can't be read, or that the target can't hold.
pub(super) async fn check_rows(
    source: &CopyEnd,
    target: &CopyEnd,
    on_step: &mut impl FnMut(CopyStep),
) -> Result<(), CopyError> {
    for part in CopiedPart::ALL.into_iter().filter(|part| part.fits(&*target.store)) {
        let mut count = 0;
        each_page(source, part, async |rows| {
            check_bodies(target, &rows)?;
            count += rows.len() as u64;
            retry(async || rows::check(&*target.store, rows.clone()).await).await?;
            on_step(CopyStep::Checked { part, rows: count });
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Copies all rows that are not in the target yet.
pub(super) async fn copy_rows(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &mut TargetMark,
    shift: ClockShift,
    on_step: &mut impl FnMut(CopyStep),
) -> Result<(), CopyError> {
    let upkeep = Ibid::for_upkeep(source.store.clone(), Settings::default());
    let mut settling = Settling { upkeep, replaced: HashSet::new() };
    while !to.progress().is_complete {
        let index = to.progress().parts.len().saturating_sub(1);
        let part = CopiedPart::ALL[index];
        let mut totals = to.progress().parts.get(index).copied().unwrap_or_default();
        let mut next = None;
        if part.fits(&*target.store) {
            let after = to.progress().after.as_deref().and_then(|text| text.parse().ok());
            let page = settling.page(source, part, after, on_step).await?;
            next = page.next;
            for row in &page.items {
                totals.add(row.digest());
            }
            check_bodies(target, &page.items)?;
            let shifted: Vec<_> = page.items.into_iter().map(|row| row.shift(shift)).collect();
            put_batch(source, target, to, shifted).await?;
            failpoint::at("copy.batch").await;
        }
        write_progress(source, target, to, index, totals, next).await?;
        on_step(CopyStep::Copied { part, rows: totals.count });
    }
    Ok(())
}

/// Stores a batch. It is sent again only while this process holds the copy: another one may have opened the target since.
async fn put_batch(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &TargetMark,
    batch: Vec<PartRow>,
) -> Result<(), CopyError> {
    let mut is_repeated = false;
    let put = async || {
        if std::mem::replace(&mut is_repeated, true) && !to.is_held(target).await? {
            return Ok(false);
        }
        rows::put(&*target.store, to.fence(), batch.clone()).await.map(|()| true)
    };
    match retry(put).await {
        Ok(true) => Ok(()),
        ended => {
            to.check_held(source, target).await?;
            ended.and(Err(CopyError::AnotherProcess))
        }
    }
}

async fn write_progress(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &mut TargetMark,
    index: usize,
    totals: RowTotals,
    next: Option<Cursor>,
) -> Result<(), CopyError> {
    to.write_progress(source, target, |progress| {
        progress.parts.truncate(index);
        progress.parts.push(totals);
        progress.after = next.map(|cursor| cursor.to_string());
        if progress.after.is_none() {
            match index + 1 < CopiedPart::ALL.len() {
                true => progress.parts.push(RowTotals::default()),
                false => progress.is_complete = true,
            }
        }
    })
    .await
}

/// Fails unless the target holds exactly the rows that were copied.
pub(super) async fn compare_rows(
    target: &CopyEnd,
    to: &TargetMark,
    shift: ClockShift,
    on_step: &mut impl FnMut(CopyStep),
) -> Result<(), CopyError> {
    for (part, copied) in CopiedPart::ALL.into_iter().zip(to.progress().parts.clone()) {
        let mut totals = RowTotals::default();
        if part.fits(&*target.store) {
            each_page(target, part, async |rows| {
                for row in rows {
                    totals.add(row.shift(shift.reverse()).digest());
                }
                on_step(CopyStep::Compared { part, rows: totals.count });
                Ok(())
            })
            .await?;
        }
        if totals != copied {
            return Err(CopyError::Differs { part, copied, found: totals });
        }
    }
    Ok(())
}

/// Reads a part to its end. A page may have no rows, and still have a next one.
async fn each_page(
    end: &CopyEnd,
    part: CopiedPart,
    mut each: impl AsyncFnMut(Vec<PartRow>) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let mut after = None;
    loop {
        let page = retry(async || rows::page(&*end.store, part, after.clone(), PAGE).await);
        let Page { items, next } = page.await?;
        each(items).await?;
        after = next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Fails if the target can't hold the bodies of these rows.
fn check_bodies(target: &CopyEnd, rows: &[PartRow]) -> Result<(), CopyError> {
    match rows.iter().filter(|row| row.has_bodies()).count() {
        count if count > 0 && target.store.bodies().is_none() => {
            Err(CopyError::Unsupported { what: "stored requests", count })
        }
        _ => Ok(()),
    }
}

/// Waits for the leases of a closed source, and gives what they held another version: a late holder loses.
struct Settling {
    upkeep: Ibid,
    /// Numbers of the effects whose claim was replaced by this process.
    replaced: HashSet<i64>,
}

impl Settling {
    /// Returns a page on which no process is at work.
    async fn page(
        &mut self,
        source: &CopyEnd,
        part: CopiedPart,
        after: Option<Cursor>,
        on_step: &mut impl FnMut(CopyStep),
    ) -> Result<Page<PartRow>, CopyError> {
        // Not bounded: a lease ends when its attempt does, at the latest after the route's `max_run`.
        loop {
            let page = retry(async || rows::page(&*source.store, part, after.clone(), PAGE).await).await?;
            let leases = page.items.iter().filter(|row| row.is_leased()).count();
            let claims = page.items.iter().filter_map(PartRow::lapsed_claim);
            let late: Vec<_> = claims.filter(|effect| !self.replaced.contains(&effect.seq)).collect();
            if leases == 0 && late.is_empty() {
                return Ok(page);
            }
            for effect in late {
                retry(async || replace_claim(&*source.store, effect).await).await?;
                self.replaced.insert(effect.seq);
            }
            if leases > 0 {
                on_step(CopyStep::Running { leases });
                retry(async || sweep_once(&self.upkeep).await).await?;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Rows of a page. With responses of the largest size that is stored by default (1 MiB), a page is 128 MiB; each page costs one
/// write of the target's mark.
const PAGE: u32 = 128;

/// Pause between two looks at running requests. It is short, because an operator waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);
