//! The processor's books: which charges were made, under which key. With a file, a killed processor remembers.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What is asked of the processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChargeRequest {
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// Whose card.
    pub customer_id: String,
    /// What it is for, as the merchant calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The header that says which trace it is part of.
    #[serde(skip)]
    pub traceparent: Option<String>,
}

/// How a charge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChargeStatus {
    /// The money is taken.
    Succeeded,
    /// The bank said no; no money is taken.
    Declined,
}

/// One charge, as it is answered and as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// The processor's own name for it.
    pub charge_id: String,
    /// How it ended.
    pub status: ChargeStatus,
    /// The key that it came under.
    pub idempotency_key: String,
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// Whose card.
    pub customer_id: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// As it came with the request that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// What came of asking for a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It was made just now.
    New(Charge),
    /// It had been made before under this key.
    Again(Charge),
    /// The key stands for another charge.
    Reused,
}

/// All charges, in their order.
#[derive(Debug)]
pub struct Ledger {
    charges: Vec<Charge>,
    /// The first charge of each key.
    by_key: HashMap<String, usize>,
    file: Option<File>,
    ignore_keys: bool,
}

impl Ledger {
    /// Empty books, or those in the file.
    pub fn open(state: Option<&Path>, ignore_keys: bool) -> io::Result<Ledger> {
        let mut ledger = Ledger { charges: Vec::new(), by_key: HashMap::new(), file: None, ignore_keys };
        if let Some(path) = state {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            for charge in replay(&mut file)? {
                ledger.note(charge);
            }
            ledger.file = Some(file);
        }
        Ok(ledger)
    }

    /// Makes a charge, unless the key says that it is made. On disk before it counts.
    pub fn charge(&mut self, key: &str, asked: ChargeRequest) -> io::Result<Entry> {
        if !self.ignore_keys
            && let Some(charge) = self.find(key)
        {
            let same = is_for(charge, &asked);
            return Ok(if same { Entry::Again(charge.clone()) } else { Entry::Reused });
        }
        if self.charges.len() >= CHARGES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the simulated processor's books are full",
            ));
        }
        let declined = asked.amount_cents % 100 == DECLINED_CENTS;
        let charge = Charge {
            charge_id: format!("ch_{}", Uuid::now_v7().simple()),
            status: if declined { ChargeStatus::Declined } else { ChargeStatus::Succeeded },
            idempotency_key: key.to_owned(),
            amount_cents: asked.amount_cents,
            currency: asked.currency,
            customer_id: asked.customer_id,
            reference: asked.reference,
            traceparent: asked.traceparent,
        };
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_vec(&charge)?;
            line.push(b'\n');
            file.write_all(&line)?;
            file.sync_data()?;
        }
        self.note(charge.clone());
        Ok(Entry::New(charge))
    }

    /// The first charge under this key.
    pub fn find(&self, key: &str) -> Option<&Charge> {
        self.by_key.get(key).map(|at| &self.charges[*at])
    }

    /// Every charge, in its order.
    pub fn all(&self) -> &[Charge] {
        &self.charges
    }

    fn note(&mut self, charge: Charge) {
        self.by_key.entry(charge.idempotency_key.clone()).or_insert(self.charges.len());
        self.charges.push(charge);
    }
}

fn is_for(charge: &Charge, asked: &ChargeRequest) -> bool {
    (charge.amount_cents, &charge.currency, &charge.customer_id, &charge.reference)
        == (asked.amount_cents, &asked.currency, &asked.customer_id, &asked.reference)
}

/// Reads every whole line. What was being written when the processor was killed had not counted yet: it is cut off.
fn replay(file: &mut File) -> io::Result<Vec<Charge>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(io::Error::from)).collect()
}

/// Amounts that end in these cents are declined, so that a test can ask for it: 1013 is, 1014 is not.
pub const DECLINED_CENTS: i64 = 13;

/// Some hundred bytes each: a run that makes more than this is no test any more, and the list is one answer.
const CHARGES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(amount_cents: i64) -> ChargeRequest {
        let (currency, customer_id) = ("EUR".to_owned(), "ann".to_owned());
        ChargeRequest { amount_cents, currency, customer_id, reference: None, traceparent: None }
    }

    #[test]
    fn a_key_is_charged_once_and_stands_for_one_charge() {
        let mut ledger = Ledger::open(None, false).unwrap();
        let Entry::New(first) = ledger.charge("a", asked(100)).unwrap() else { panic!("not new") };
        assert_eq!(ledger.charge("a", asked(100)).unwrap(), Entry::Again(first));
        assert_eq!(ledger.charge("a", asked(101)).unwrap(), Entry::Reused);
        assert_eq!(ledger.all().len(), 1);
    }

    #[test]
    fn a_processor_that_ignores_keys_charges_again() {
        let mut ledger = Ledger::open(None, true).unwrap();
        for _ in 0..2 {
            assert!(matches!(ledger.charge("a", asked(100)).unwrap(), Entry::New(_)));
        }
        assert_eq!(ledger.all().len(), 2);
        assert_eq!(ledger.find("a"), ledger.all().first());
    }

    #[test]
    fn the_file_remembers_and_half_a_line_never_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("charges");
        let mut ledger = Ledger::open(Some(&path), false).unwrap();
        ledger.charge("a", asked(100)).unwrap();
        ledger.charge("b", asked(113)).unwrap();
        let before = ledger.all().to_vec();
        drop(ledger);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"chargeId\":\"ch_").unwrap();
        let mut ledger = Ledger::open(Some(&path), false).unwrap();
        assert_eq!(ledger.all(), before);
        assert_eq!(before[1].status, ChargeStatus::Declined);
        assert!(matches!(ledger.charge("a", asked(100)).unwrap(), Entry::Again(_)));
        ledger.charge("c", asked(100)).unwrap();
        drop(ledger);
        assert_eq!(Ledger::open(Some(&path), false).unwrap().all().len(), 3);
    }

    #[test]
    fn a_line_that_is_no_charge_is_an_error_and_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("charges");
        std::fs::write(&path, "{}\n").unwrap();
        assert!(Ledger::open(Some(&path), false).is_err());
    }
}
