//! Reads of a partition: pages of a range, and single rows.

use quell_core::Result;

use crate::long::{PartCounts, whole};
use crate::partition::Partition;
use crate::table::{Page, Range, Row, Table};

impl<T: Table> Partition<T> {
    /// The first rows of a range: `limit`, unless it ends before. A service may give fewer at a time.
    async fn page(&self, range: Range, limit: usize) -> Result<Page> {
        let (mut rows, mut range) = (Vec::new(), range);
        loop {
            let left = limit.saturating_sub(rows.len());
            let page = self.table().range(self.name(), &range, left).await?;
            rows.extend(page.rows);
            match page.next {
                Some(next) if rows.len() < limit => range.from = next,
                next => return Ok(Page { rows, next }),
            }
        }
    }

    /// The same, with the values of long rows put together.
    pub(crate) async fn whole_page(
        &self,
        range: Range,
        limit: usize,
    ) -> Result<(Page, PartCounts)> {
        let Page { rows, next } = self.page(range, limit).await?;
        let rows = rows.into_iter().map(Some).collect();
        let (rows, parts) = whole(self.table(), self.name(), rows).await?;
        Ok((Page { rows: rows.into_iter().flatten().collect(), next }, parts))
    }

    /// One row, as it is stored.
    pub(crate) async fn row(&self, name: &str) -> Result<Option<Row>> {
        Ok(self.table().get(self.name(), &[name.to_owned()]).await?.pop().flatten())
    }
}
