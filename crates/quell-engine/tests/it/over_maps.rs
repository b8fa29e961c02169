//! Backends of tests that stand before maps.

/// Implements `Backend` for a type whose field `maps` takes all calls but those that are given. The caller
/// has the names in scope.
macro_rules! over_maps {
    ($backend:ty { $($own:tt)* }) => {
        #[async_trait]
        impl Backend for $backend {
            type Tx = <Maps as Backend>::Tx;

            fn capabilities(&self) -> Capabilities {
                self.maps.capabilities()
            }

            async fn begin(&self, time: Time, access: Access) -> Result<Beginning<Self::Tx>> {
                self.maps.begin(time, access).await
            }

            async fn ids_above(&self, tx: &mut Self::Tx, above: JobId, jobs: usize) -> Result<Ids> {
                self.maps.ids_above(tx, above, jobs).await
            }

            async fn load(
                &self,
                tx: &mut Self::Tx,
                names: &BTreeSet<RowName>,
            ) -> Result<Vec<(RowName, Row)>> {
                self.maps.load(tx, names).await
            }

            async fn scan(&self, tx: &mut Self::Tx, scans: &[Scan]) -> Result<Vec<Seen>> {
                self.maps.scan(tx, scans).await
            }

            async fn load_aside(&self, tx: &mut Self::Tx, id: JobId) -> Result<Option<Row>> {
                self.maps.load_aside(tx, id).await
            }

            async fn load_in_part(&self, tx: &mut Self::Tx, id: JobId) -> Result<Option<Job>> {
                self.maps.load_in_part(tx, id).await
            }

            async fn counts(&self, tx: &mut Self::Tx) -> Result<Tally> {
                self.maps.counts(tx).await
            }

            async fn checkup(&self) -> Result<Checkup> {
                self.maps.checkup().await
            }

            $($own)*
        }
    };
}

pub(crate) use over_maps;
