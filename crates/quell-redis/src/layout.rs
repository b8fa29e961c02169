//! Which layout of keys and rows a shard has: stamped when it is first opened, and checked whenever
//! it is opened again.

use quell_core::{Error, ErrorKind, Result};

use crate::look::Read;
use crate::row::corrupt;
use crate::shard::{Shard, Time};
use crate::tx::{Cell, Committed, TRIES, Tx, contended};

/// What this version writes.
const LAYOUT: u32 = 1;
/// The field of `meta` that says which one there is.
const FIELD: &str = "layout";

impl Shard {
    /// Stamps a shard that is new; refuses one that a newer Quell has written.
    pub(crate) async fn check_layout(&self) -> Result<()> {
        let reads = [Read::Fields(self.keys.meta(), vec![FIELD.to_owned()])];
        let mut looked = self.look("read the store's layout", Time::Last, &reads).await?;
        match looked.fields()?.into_iter().flatten().next() {
            Some(found) => judge(&found),
            None => self.stamp().await,
        }
    }

    async fn stamp(&self) -> Result<()> {
        let what = "write the store's layout";
        for tries in 0..TRIES {
            let mut tx = Tx::begin(self, (Time::Last, false), tries, 0).await?;
            tx.fetch(vec![Cell::new(self.keys.meta(), FIELD)], Vec::new()).await?;
            if let Some(found) = tx.cell(self.keys.meta(), FIELD) {
                return judge(found);
            }
            tx.beside.hash_set(self.keys.meta(), FIELD, LAYOUT.to_string().into_bytes());
            if let Committed::Done(_) = tx.commit(what).await? {
                return Ok(());
            }
        }
        Err(contended(what))
    }
}

fn judge(found: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(found);
    let layout: u32 =
        text.parse().map_err(|_| corrupt(format_args!("the layout {text:?} in meta")))?;
    if layout <= LAYOUT {
        return Ok(());
    }
    let message = format!(
        "the store has layout {layout}, this Quell knows up to {LAYOUT}: update this program"
    );
    Err(Error::new(ErrorKind::Newer, message))
}
