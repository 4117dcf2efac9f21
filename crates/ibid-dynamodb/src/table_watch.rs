//! The look at the table while the store is open: on a table that no store would open any more, nothing begins.
//!
//! T1 begins a key here. The table becomes a global table, and its copy in another region lacks T1's last writes. T2 retries the
//! key there, finds nothing, and runs again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use parking_lot::Mutex;

use crate::table::{TableCheckup, describe};

/// Result of the last look at the table.
#[derive(Debug, Default)]
pub(crate) struct TableWatch {
    /// Reason why nothing may begin.
    refusal: Mutex<Option<String>>,
}

impl TableWatch {
    /// Looks at the table again and again, until the returned watch is dropped.
    pub(crate) fn start(client: Client, table: String, every: Duration) -> Arc<TableWatch> {
        let watch = Arc::new(TableWatch::default());
        tokio::spawn(keep_looking(client, table, Arc::downgrade(&watch), every));
        watch
    }

    /// Returns the reason why nothing may begin; `None` if it may.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().clone()
    }

    fn note(&self, checkup: TableCheckup) {
        let refusal = match checkup {
            TableCheckup::Unfit(why) => Some(format!("the table cannot be used any more: {why}")),
            // Without a table every request fails by itself.
            TableCheckup::Missing | TableCheckup::Creating | TableCheckup::Fit => None,
        };
        let before = std::mem::replace(&mut *self.refusal.lock(), refusal.clone());
        match (before, refusal) {
            (None, Some(reason)) => {
                tracing::error!(reason, "DynamoDB: nothing begins, attempts still end");
            }
            (Some(_), None) => tracing::info!("DynamoDB: the table can be used again: attempts begin"),
            _ => {}
        }
    }
}

async fn keep_looking(client: Client, table: String, watch: Weak<TableWatch>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if watch.strong_count() == 0 {
            return;
        }
        let described = describe(&client, &table).await;
        let Some(watch) = watch.upgrade() else { return };
        match described {
            Ok(checkup) => watch.note(checkup),
            // The result of the look before it stays.
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "no look at the table");
            }
        }
    }
}

/// Time between two looks at the table. A copy in another region takes minutes to make, and no store opens it.
pub(crate) const INSPECT_EVERY: Duration = Duration::from_secs(60);
