//! Policies: one item each, numbered by their content, and cached.

use std::collections::HashMap;
use std::sync::Arc;

use ibid_core::policy::Policy;
use ibid_core::store::StoreError;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::client::send_if;
use crate::item::{binary, get_bytes, key};
use crate::{DynamoStore, NAME};

/// Policies by number, and numbers by policy. A number never means another policy.
#[derive(Debug, Default)]
pub(crate) struct Policies(Mutex<PolicyCache>);

#[derive(Debug, Default)]
struct PolicyCache {
    by_number: HashMap<i64, Arc<Policy>>,
    /// By the address of the policy, which stays taken while the entry holds it.
    by_address: HashMap<usize, (Arc<Policy>, i64)>,
}

impl Policies {
    fn remember(&self, number: i64, policy: &Arc<Policy>) {
        let mut known = self.0.lock();
        if known.by_number.len() >= POLICIES_MAX {
            known.by_number.clear();
        }
        known.by_number.insert(number, policy.clone());
    }
}

impl DynamoStore {
    /// Returns the number of a policy, once the policy is stored.
    pub(crate) async fn policy_number(&self, policy: &Arc<Policy>) -> Result<i64, StoreError> {
        let address = Arc::as_ptr(policy).addr();
        if let Some((_, number)) = self.policies.0.lock().by_address.get(&address) {
            return Ok(*number);
        }
        let bytes = policy.to_bytes();
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        let number = i64::from_be_bytes(std::array::from_fn(|index| digest[index]));
        let is_known = self.policies.0.lock().by_number.get(&number).is_some_and(|known| known == policy);
        if !is_known {
            self.store_policy(number, &bytes).await?;
        }
        self.policies.remember(number, policy);
        let mut known = self.policies.0.lock();
        if known.by_address.len() >= POLICIES_MAX {
            known.by_address.clear();
        }
        known.by_address.insert(address, (policy.clone(), number));
        Ok(number)
    }

    async fn store_policy(&self, number: i64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut item = key(&item_id(number), KIND);
        item.insert("z".to_owned(), binary(bytes));
        let put = self.request().put_item().table_name(&self.table).set_item(Some(item));
        let put = put.condition_expression("attribute_not_exists(i)");
        // Nothing of the change itself is written before its policy is.
        if send_if(OP, || put.clone().send()).await.map_err(StoreError::unwritten)?.is_some() {
            return Ok(());
        }
        let stored = self.get(OP, key(&item_id(number), KIND)).await.map_err(StoreError::unwritten)?;
        match stored.as_ref().and_then(|item| get_bytes(item, "z")) == Some(bytes) {
            true => Ok(()),
            false => Err(StoreError::lasting(NAME, OP, "another policy has its number").unwritten()),
        }
    }

    /// Returns the policy with this number.
    pub(crate) async fn policy(&self, op: &'static str, number: i64) -> Result<Arc<Policy>, StoreError> {
        if let Some(policy) = self.policies.0.lock().by_number.get(&number) {
            return Ok(policy.clone());
        }
        let item = self.get(op, key(&item_id(number), KIND)).await?;
        let policy = item.as_ref().and_then(|item| get_bytes(item, "z")).and_then(Policy::from_bytes);
        let Some(policy) = policy.map(Arc::new) else {
            return Err(StoreError::lasting(NAME, op, "a policy is missing, or of an unknown version"));
        };
        self.policies.remember(number, &policy);
        Ok(policy)
    }
}

fn item_id(number: i64) -> [u8; 8] {
    number.to_be_bytes()
}

const OP: &str = "store a policy";
const KIND: &str = "p";

/// Policies come from routes, and a gateway has dozens. A program with more generates them, and pays with a read.
const POLICIES_MAX: usize = 1024;
