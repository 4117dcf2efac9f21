//! Settings: one item each, under the digest of the name.

use bytes::Bytes;
use ibid_core::store::{SetOutcome, StoreError};
use sha2::{Digest, Sha256};

use crate::DynamoStore;
use crate::client::{send_if, send_one};
use crate::item::{Item, binary, get_bytes, key, string};

impl DynamoStore {
    pub(crate) async fn read_setting(
        &self,
        op: &'static str,
        name: &str,
    ) -> Result<Option<Bytes>, StoreError> {
        let item = self.get(op, key(&digest(name), KIND)).await?;
        // An empty value is left out.
        Ok(item.map(|item| Bytes::copy_from_slice(get_bytes(&item, "z").unwrap_or_default())))
    }

    pub(crate) async fn write_setting(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> Result<SetOutcome, StoreError> {
        const OP: &str = "write a setting";
        let mut item = key(&digest(name), KIND);
        item.insert("name".to_owned(), string(name));
        item.extend((!value.is_empty()).then(|| ("z".to_owned(), binary(&value[..]))));
        let put = self.request().put_item().table_name(&self.table).set_item(Some(item));
        let put = match &expected {
            None => put.condition_expression("attribute_not_exists(i)"),
            Some(value) if value.is_empty() => {
                put.condition_expression("attribute_exists(i) AND attribute_not_exists(z)")
            }
            Some(value) => {
                put.condition_expression("z = :was").expression_attribute_values(":was", binary(&value[..]))
            }
        };
        match send_if(OP, || put.clone().send()).await? {
            Some(_) => Ok(SetOutcome::Won),
            None => Ok(SetOutcome::of(self.read_setting(OP, name).await?, &value)),
        }
    }

    /// Reads one item, consistently.
    pub(crate) async fn get(&self, op: &'static str, key: Item) -> Result<Option<Item>, StoreError> {
        let get = self.request().get_item().table_name(&self.table).set_key(Some(key)).consistent_read(true);
        let reply = send_one(op, None, || get.clone().send()).await;
        Ok(reply.map_err(|error| error.into_store_error(op))?.item)
    }
}

fn digest(name: &str) -> [u8; 32] {
    Sha256::new().chain_update(b"ibid setting ").chain_update(name).finalize().into()
}

const KIND: &str = "s";
