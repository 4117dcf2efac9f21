//! Changes in as few round trips as their fates allow. It compares versions and instants; what a State means is not its
//! business.
//!
//! All of a batch goes together at first. If that fails because of one of them (somebody holds its row, or it can't be
//! stored), the batch is halved again and again with the same nonces until the one is alone: its failure is its own.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Commit, Expect, Stamp, StoredRecord};
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::KIND;
use super::columns::{Columns, Numbering, Numbers, bits};
use super::connect::{Connection, OPEN_HOT, Param};
use super::evidence::Uses;
use super::failure::{self, Reach};
use super::flight::{self, Flight, Tid, Tids};
use super::row::{self, AllStanding, Policies, Standing, Unreadable};

pub(super) type Fate = Result<Commit, StoreError>;

/// One call of `commit`.
pub(super) struct Batch<'a> {
    connection: &'a Connection,
    policies: &'a Policies,
    numbering: &'a Numbering,
    tids: &'a Tids,
    changes: &'a [Arc<Change>],
    /// Where the row of each is, if it is the finish of a record that was begun here.
    rows: Vec<Option<Tid>>,
    fates: Vec<Option<Fate>>,
    /// How often each was asked again because a row moved under it.
    tries: Vec<u32>,
    /// Set by the first contention: past it nothing is tried again.
    until: Option<Instant>,
}

/// Changes, by their places, that are sent together.
struct Unit {
    places: Vec<usize>,
    /// Whether all of them are: `flight.sql` takes them.
    plain: bool,
    /// How its transaction is opened, and so how long it waits for a row.
    open: &'static str,
}

/// What a statement said about one Change.
enum Said {
    Done(Timestamp),
    Stands(Box<StoredRecord>),
    Nothing,
    Unreadable(Unreadable),
}

/// Why a unit has no answer.
enum Failed {
    Sql(Error),
    /// A warning came with the commit.
    Doubt,
}

impl<'a> Batch<'a> {
    /// What came of each Change, at its place.
    pub(super) async fn run(
        connection: &'a Connection,
        policies: &'a Policies,
        numbering: &'a Numbering,
        tids: &'a Tids,
        changes: &'a [Arc<Change>],
    ) -> Vec<Fate> {
        let fates = changes.iter().map(|change| refused(change).map(Err)).collect();
        let (rows, tries) = (tids.take(changes), vec![0; changes.len()]);
        let mut batch =
            Batch { connection, policies, numbering, tids, changes, rows, fates, tries, until: None };
        batch.work().await;
        // Each place left the work with a fate.
        let lost = || Err(StoreError::transient(KIND, "commit", "the store gave no answer"));
        batch.fates.into_iter().map(|fate| fate.unwrap_or_else(lost)).collect()
    }

    async fn work(&mut self) {
        let places = (0..self.changes.len()).filter(|place| self.fates[*place].is_none());
        let begins_fly = self.tids.begins_fly();
        let is_plain = |place: &usize| {
            self.rows[*place].is_some() || begins_fly && flight::is_fresh(&self.changes[*place])
        };
        let (mut plain, rest): (Vec<usize>, Vec<usize>) = places.partition(is_plain);
        plain.sort_unstable_by(|one, other| self.changes[*one].id.cmp(&self.changes[*other].id));
        // The last one goes first.
        let mut units = vec![
            Unit { places: rest, plain: false, open: OPEN_HOT },
            Unit { places: plain, plain: true, open: OPEN_HOT },
        ];
        // A unit is halved or its tries are counted, so this ends.
        while let Some(unit) = units.pop() {
            if unit.places.is_empty() {
                continue;
            }
            let said = match unit.plain {
                true => self.fly(&unit.places, unit.open).await,
                // In a box of its own: it is large, and few batches need it.
                false => Box::pin(self.attempt(&unit)).await,
            };
            match said {
                Ok(said) => {
                    units.extend(self.settle(&unit, said).await);
                    if unit.plain {
                        // Of those nothing was said. The others' statements learn what stands there.
                        let places = unit.places.into_iter().filter(|place| self.fates[*place].is_none());
                        units.push(Unit { places: places.collect(), plain: false, open: unit.open });
                    }
                }
                Err(Failed::Doubt) => {
                    let doubt = || StoreError::transient(KIND, "commit", "the commit came with a warning");
                    self.fail(&unit.places, doubt);
                }
                // Somebody else begins one of them at this moment; begin.sql passes over that one.
                Err(Failed::Sql(error)) if unit.plain && failure::is_rival(&error) => {
                    self.tids.met_a_rival();
                    units.push(Unit { plain: false, ..unit });
                }
                Err(Failed::Sql(error)) => self.stumble(unit, error, &mut units),
            }
        }
    }

    /// Sends plain changes, which are in the order of their ids. Of some nothing may be said.
    async fn fly(&self, places: &[usize], open: &'static str) -> Result<Vec<(usize, Said)>, Failed> {
        let changes = || places.iter().map(|place| &*self.changes[*place]);
        let numbers = self.numbering.of(changes());
        self.ensure_policies(&numbers).await?;
        let flight = Flight::of(changes().zip(places.iter().map(|place| self.rows[*place])), &numbers);
        let [fresh, finish] = self.connection.row_types().await?.clone();
        self.connection.forget_warnings();
        let params: [Param<'_>; 3] =
            [(&flight.begins, fresh), (&flight.finishes, finish), (&flight.ids, Type::BYTEA_ARRAY)];
        let rows = self.connection.fly(open, FLIGHT, &params).await?;
        if self.connection.was_warned() {
            return Err(Failed::Doubt);
        }
        let Some(row) = rows.first() else {
            // It was another session than we believed.
            self.connection.settings(false);
            return Ok(Vec::new());
        };
        let now = Timestamp::from_micros(row.try_get(0)?);
        let (tids, done): (Vec<Tid>, Vec<i64>) = (row.try_get(1)?, row.try_get(2)?);
        let AllStanding(standing) = row.try_get(3)?;
        self.policies.learn(self.connection, standing.iter().filter_map(Standing::policy)).await?;
        let (finishes, mut begins): (Vec<usize>, Vec<usize>) =
            places.iter().partition(|place| self.rows[**place].is_some());
        let mut said = Vec::with_capacity(places.len());
        for stands in standing {
            let found = begins
                .binary_search_by(|place| Some(&self.changes[*place].id.as_bytes()[..]).cmp(&stands.id()));
            // It speaks of what was sent.
            let Ok(found) = found else { continue };
            said.push((begins.remove(found), stands_there(stands.stored(self.policies, now))));
        }
        // All others were begun, in this order.
        if begins.len() == tids.len() {
            self.tids.put(begins.iter().map(|place| &self.changes[*place]).zip(tids));
            said.extend(begins.into_iter().map(|place| (place, Said::Done(now))));
        }
        let all = done.len() == finishes.len();
        let is_done = |place: &usize| all || done.contains(&bits(self.changes[*place].nonce));
        said.extend(finishes.into_iter().filter(is_done).map(|place| (place, Said::Done(now))));
        Ok(said)
    }

    /// Sends a unit: begins by one statement, all others by another, and if it has both, both together.
    async fn attempt(&self, unit: &Unit) -> Result<Vec<(usize, Said)>, Failed> {
        let is_begin = |place: &usize| {
            let change = &self.changes[*place];
            change.expect == Expect::Absent && change.draft.is_some()
        };
        let change = |place: &usize| &*self.changes[*place];
        let (begins, others): (Vec<usize>, Vec<usize>) =
            unit.places.iter().partition(|place| is_begin(place));
        let numbers = self.numbering.of(unit.places.iter().map(change));
        self.ensure_policies(&numbers).await?;
        let begin = Columns::of(begins.iter().map(change), &numbers);
        let commit = Columns::of(others.iter().map(change), &numbers);
        self.connection.forget_warnings();
        let uses = Uses::of(others.iter().map(change));
        let (begun, committed) = self.send(&begin, &commit, &uses, unit.open).await?;
        if self.connection.was_warned() {
            return Err(Failed::Doubt);
        }
        let named = row::policies_of(&begun).chain(row::policies_of(&committed));
        self.policies.learn(self.connection, named).await?;
        let mut said = Vec::with_capacity(unit.places.len());
        for (places, rows) in [(&begins, begun), (&others, committed)] {
            for row in rows {
                said.push(self.read(places, &row)?);
            }
        }
        Ok(said)
    }

    async fn send(
        &self,
        begin: &Columns<'_>,
        commit: &Columns<'_>,
        uses: &Uses<'_>,
        open: &'static str,
    ) -> Result<(Vec<Row>, Vec<Row>), Error> {
        let (begin_params, commit_params) = (begin.begin(), commit.commit());
        let (begins, commits) = ((BEGIN, &begin_params[..]), (COMMIT, &commit_params[..]));
        let connection = self.connection;
        if !uses.is_empty() {
            // It reads what the commit before it has written.
            let used = (USE_EVIDENCE, &uses.params()[..]);
            if begin.is_empty() {
                let [committed, _] = connection.hot(open, [commits, used]).await?;
                return Ok((Vec::new(), committed));
            }
            let [begun, committed, _] = connection.hot(open, [begins, commits, used]).await?;
            return Ok((begun, committed));
        }
        if commit.is_empty() {
            let [begun] = connection.hot(open, [begins]).await?;
            Ok((begun, Vec::new()))
        } else if begin.is_empty() {
            let [committed] = connection.hot(open, [commits]).await?;
            Ok((Vec::new(), committed))
        } else {
            let [begun, committed] = connection.hot(open, [begins, commits]).await?;
            Ok((begun, committed))
        }
    }

    /// A policy is stored before the records that name it, in a transaction of its own.
    async fn ensure_policies(&self, numbers: &Numbers) -> Result<(), Error> {
        if self.connection.unsure_policies(numbers.digests()).is_empty() {
            return Ok(());
        }
        let all = numbers.all();
        let unsure = self.connection.unsure_policies(all.keys().copied());
        let policies: Vec<(i64, &[u8])> = unsure.iter().map(|digest| (*digest, all[digest])).collect();
        row::put(self.connection, &policies).await
    }

    fn read(&self, places: &[usize], row: &Row) -> Result<(usize, Said), Error> {
        let place: i64 = row.try_get(row::NOW + 1)?;
        // Places count from one, in the order in which they were sent.
        Ok((places[place as usize - 1], self.word(row)?))
    }

    fn word(&self, row: &Row) -> Result<Said, Error> {
        if row.try_get(row::NOW + 2)? {
            return Ok(Said::Done(Timestamp::from_micros(row.try_get(row::NOW)?)));
        }
        if !row::has_record(row) {
            return Ok(Said::Nothing);
        }
        Ok(stands_there(row::stored(self.policies, row)))
    }

    /// Takes down what was said. What has to be asked again comes back.
    async fn settle(&mut self, unit: &Unit, said: Vec<(usize, Said)>) -> Option<Unit> {
        let mut again = Vec::new();
        for (place, word) in said {
            let change = &self.changes[place];
            let has_tries = self.tries[place] < TRIES_MAX;
            let fate = match word {
                Said::Done(now) => Ok(Commit::Done(Stamp { now })),
                // What stands there keeps this from being written.
                Said::Unreadable(why) => Err(StoreError::lasting(KIND, "commit", why).unwritten()),
                // From a snapshot before somebody else's write, or passed over because somebody holds it.
                Said::Stands(stored) if still_fits(change, &stored) && has_tries => {
                    again.push(place);
                    continue;
                }
                // Whoever holds a row that is due may yet renew or finish it: to a takeover that is a lost race,
                // and the caller decides again on what stands.
                Said::Stands(stored) if matches!(change.expect, Expect::Due(_)) => {
                    Ok(Commit::Conflict(Some(stored)))
                }
                Said::Stands(stored) if still_fits(change, &stored) => Err(moving()),
                Said::Stands(stored) => Ok(Commit::Conflict(Some(stored))),
                Said::Nothing if change.expect != Expect::Absent => Ok(Commit::Conflict(None)),
                Said::Nothing if has_tries => {
                    again.push(place);
                    continue;
                }
                Said::Nothing => Err(moving()),
            };
            self.fates[place] = Some(fate);
        }
        let tries = again.iter().map(|place| self.tries[*place]).max()?;
        again.iter().for_each(|place| self.tries[*place] += 1);
        if tries > 0 {
            tokio::time::sleep(PAUSE * (1 << tries)).await;
        }
        Some(Unit { places: again, plain: false, open: unit.open })
    }

    /// Halves a unit that failed because of one of them, or gives its places their error.
    fn stumble(&mut self, unit: Unit, error: Error, units: &mut Vec<Unit>) {
        let now = Instant::now();
        let may_go_on = now < *self.until.get_or_insert(now + CONTENTION_MAX);
        let reach = failure::reach(&error);
        match (reach, unit.places.len()) {
            (Reach::Contended | Reach::One, 2..) if may_go_on => {
                // First what ends something from what begins something, which is what waits for strangers.
                let is_begin = |place: &usize| self.changes[*place].expect == Expect::Absent;
                let (begins, ends): (Vec<usize>, Vec<usize>) =
                    unit.places.iter().partition(|place| is_begin(place));
                let (low, high) = match ends.is_empty() || begins.is_empty() {
                    true => unit.places.split_at(unit.places.len() / 2),
                    false => (&ends[..], &begins[..]),
                };
                let half =
                    |places: &[usize]| Unit { places: places.to_vec(), plain: unit.plain, open: OPEN_SHORT };
                units.extend([half(high), half(low)]);
            }
            (Reach::Contended, 1) if may_go_on && self.tries[unit.places[0]] < 1 => {
                self.tries[unit.places[0]] += 1;
                units.push(Unit { open: OPEN_SHORT, ..unit });
            }
            (Reach::One, 1) => {
                let mut error = Some(error);
                self.fail(&unit.places, || {
                    StoreError::lasting(KIND, "commit", error.take().expect("one place")).unwritten()
                });
            }
            _ => {
                let error = Arc::new(error);
                let shared = || match reach {
                    Reach::Lasting => StoreError::lasting(KIND, "commit", error.clone()),
                    _ => StoreError::transient(KIND, "commit", error.clone()),
                };
                self.fail(&unit.places, shared);
                // The connection is no good for those that wait behind.
                if matches!(reach, Reach::Moment | Reach::Lasting) {
                    units.drain(..).for_each(|unit| self.fail(&unit.places, shared));
                }
            }
        }
    }

    fn fail(&mut self, places: &[usize], mut error: impl FnMut() -> StoreError) {
        for place in places {
            self.fates[*place] = Some(Err(error()));
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Sql(error)
    }
}

fn stands_there(stored: Result<StoredRecord, Unreadable>) -> Said {
    stored.map(Box::new).map_or_else(Said::Unreadable, Said::Stands)
}

/// What can't be sent at all.
fn refused(change: &Change) -> Option<StoreError> {
    let why = if change.expect == Expect::Anything && change.draft.is_some() {
        "a change of a record must say what it expects"
    } else if change.body_bytes() > BODY_BYTES_MAX {
        "what is kept beside a record is too large"
    } else {
        return None;
    };
    Some(StoreError::lasting(KIND, "commit", why).unwritten())
}

/// Whether what stands is still what the Change expected, although it was refused.
fn still_fits(change: &Change, stored: &StoredRecord) -> bool {
    match change.expect {
        Expect::Version(version) => stored.record.version == version,
        Expect::Due(version) => stored.record.version == version && stored.record.is_due(stored.now),
        Expect::Absent | Expect::Anything => false,
    }
}

fn moving() -> StoreError {
    StoreError::transient(KIND, "commit", "the record changes too fast")
}

const BEGIN: &str = include_str!("sql/begin.sql");
const COMMIT: &str = include_str!("sql/commit.sql");
const FLIGHT: &str = include_str!("sql/flight.sql");
const USE_EVIDENCE: &str = include_str!("sql/evidence_use.sql");

/// Opens the transactions for the halves of a batch that has waited already: nine waits in a row must not take long.
const OPEN_SHORT: &str = concat!(include_str!("sql/open_hot.sql"), "; set local lock_timeout = '25ms'");

/// How long a batch goes on halving. A single held row takes a quarter of it at most; with many, whoever is left comes again.
const CONTENTION_MAX: Duration = Duration::from_secs(1);

/// How often a Change is sent again because its row moved under it: with the pauses about 30 ms, in which any commit
/// ends but one that waits for a person or a network.
const TRIES_MAX: u32 = 5;

/// First pause, doubled each time.
const PAUSE: Duration = Duration::from_millis(1);

/// Most bytes beside one record: a quarter of what the server takes in one message.
const BODY_BYTES_MAX: usize = 256 << 20;
