//! Quell on PostgreSQL, measured by the same code as the peers beside it.

use pg_common::Settings;
use quell_common::Measured;

fn main() -> anyhow::Result<()> {
    pg_common::main::<Measured<Settings>>()
}
