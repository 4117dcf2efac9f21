//! The processor's list of charges, optionally in a file that survives a restart.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A request for a charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ChargeOrder {
    /// In the smallest unit of the currency.
    pub(super) amount_cents: i64,
    /// Currency code by ISO 4217.
    pub(super) currency: String,
    /// Customer whose card is charged.
    pub(super) customer_id: String,
    /// The merchant's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<String>,
    /// Value of the header `traceparent`.
    #[serde(skip)]
    pub(super) traceparent: Option<String>,
}

/// Outcome of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChargeStatus {
    /// The money is taken.
    Succeeded,
    /// The bank declined; no money is taken.
    Declined,
}

/// One charge, as in responses and in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedCharge {
    /// The processor's id for it.
    pub(super) charge_id: String,
    /// Outcome of the charge.
    pub(super) status: ChargeStatus,
    /// Key of the request that made it.
    pub(super) idempotency_key: String,
    /// In the smallest unit of the currency.
    pub(super) amount_cents: i64,
    /// Currency code by ISO 4217.
    pub(super) currency: String,
    /// Customer whose card was charged.
    pub(super) customer_id: String,
    /// The merchant's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<String>,
    /// The header of the request that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) traceparent: Option<String>,
}

/// Result of a request for a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChargeEntry {
    /// A charge under a new key.
    New(RecordedCharge),
    /// The earlier charge with this key.
    Repeated(RecordedCharge),
    /// The key belongs to a charge with other values.
    KeyReused,
}

/// All charges, oldest first.
#[derive(Debug)]
pub(super) struct ChargeBook {
    charges: Vec<RecordedCharge>,
    /// Index of the first charge of each key.
    by_key: HashMap<String, usize>,
    file: Option<File>,
    ignore_keys: bool,
}

impl ChargeBook {
    /// Opens an empty list, or the one in the file.
    pub(super) fn open(state: Option<&Path>, ignore_keys: bool) -> io::Result<ChargeBook> {
        let mut book = ChargeBook { charges: Vec::new(), by_key: HashMap::new(), file: None, ignore_keys };
        if let Some(path) = state {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            for charge in replay(&mut file)? {
                book.note(charge);
            }
            book.file = Some(file);
        }
        Ok(book)
    }

    /// Makes a charge, unless its key was charged before. It is on disk before it is returned.
    pub(super) fn charge(&mut self, key: &str, order: ChargeOrder) -> io::Result<ChargeEntry> {
        if !self.ignore_keys
            && let Some(charge) = self.find(key)
        {
            let same = is_for(charge, &order);
            return Ok(if same { ChargeEntry::Repeated(charge.clone()) } else { ChargeEntry::KeyReused });
        }
        if self.charges.len() >= CHARGES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the simulated processor's books are full",
            ));
        }
        let declined = order.amount_cents % 100 == DECLINED_CENTS;
        let charge = RecordedCharge {
            charge_id: format!("ch_{}", Uuid::now_v7().simple()),
            status: if declined { ChargeStatus::Declined } else { ChargeStatus::Succeeded },
            idempotency_key: key.to_owned(),
            amount_cents: order.amount_cents,
            currency: order.currency,
            customer_id: order.customer_id,
            reference: order.reference,
            traceparent: order.traceparent,
        };
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_vec(&charge)?;
            line.push(b'\n');
            file.write_all(&line)?;
            file.sync_data()?;
        }
        self.note(charge.clone());
        Ok(ChargeEntry::New(charge))
    }

    /// Returns the first charge with this key.
    pub(super) fn find(&self, key: &str) -> Option<&RecordedCharge> {
        self.by_key.get(key).map(|at| &self.charges[*at])
    }

    /// Returns every charge, oldest first.
    pub(super) fn all(&self) -> &[RecordedCharge] {
        &self.charges
    }

    fn note(&mut self, charge: RecordedCharge) {
        self.by_key.entry(charge.idempotency_key.clone()).or_insert(self.charges.len());
        self.charges.push(charge);
    }
}

fn is_for(charge: &RecordedCharge, order: &ChargeOrder) -> bool {
    (charge.amount_cents, &charge.currency, &charge.customer_id, &charge.reference)
        == (order.amount_cents, &order.currency, &order.customer_id, &order.reference)
}

/// Reads every whole line. A partial last line was being written when the processor died, and is cut off.
fn replay(file: &mut File) -> io::Result<Vec<RecordedCharge>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(io::Error::from)).collect()
}

/// Amounts that end in these cents are declined, so that a test can ask for it: 1013 is, 1014 is not.
const DECLINED_CENTS: i64 = 13;

/// A few hundred bytes each. No test needs more, and the whole list is one response.
const CHARGES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn order(amount_cents: i64) -> ChargeOrder {
        let (currency, customer_id) = ("EUR".to_owned(), "ann".to_owned());
        ChargeOrder { amount_cents, currency, customer_id, reference: None, traceparent: None }
    }

    #[test]
    fn a_key_belongs_to_one_charge() {
        let mut book = ChargeBook::open(None, false).unwrap();
        let ChargeEntry::New(first) = book.charge("a", order(100)).unwrap() else { panic!("not new") };
        assert_eq!(book.charge("a", order(100)).unwrap(), ChargeEntry::Repeated(first));
        assert_eq!(book.charge("a", order(101)).unwrap(), ChargeEntry::KeyReused);
        assert_eq!(book.all().len(), 1);
    }

    #[test]
    fn a_processor_that_ignores_keys_charges_again() {
        let mut book = ChargeBook::open(None, true).unwrap();
        for _ in 0..2 {
            assert!(matches!(book.charge("a", order(100)).unwrap(), ChargeEntry::New(_)));
        }
        assert_eq!(book.all().len(), 2);
        assert_eq!(book.find("a"), book.all().first());
    }

    #[test]
    fn a_partial_last_line_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("charges");
        let mut book = ChargeBook::open(Some(&path), false).unwrap();
        book.charge("a", order(100)).unwrap();
        book.charge("b", order(113)).unwrap();
        let before = book.all().to_vec();
        drop(book);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"chargeId\":\"ch_").unwrap();
        let mut book = ChargeBook::open(Some(&path), false).unwrap();
        assert_eq!(book.all(), before);
        assert_eq!(before[1].status, ChargeStatus::Declined);
        assert!(matches!(book.charge("a", order(100)).unwrap(), ChargeEntry::Repeated(_)));
        book.charge("c", order(100)).unwrap();
        drop(book);
        assert_eq!(ChargeBook::open(Some(&path), false).unwrap().all().len(), 3);
    }

    #[test]
    fn an_unreadable_line_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("charges");
        std::fs::write(&path, "{}\n").unwrap();
        assert!(ChargeBook::open(Some(&path), false).is_err());
    }
}
