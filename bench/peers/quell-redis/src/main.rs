//! Quell on Redis, measured by the same code as the peers beside it.

use quell_common::Measured;
use redis_common::Settings;

fn main() -> anyhow::Result<()> {
    redis_common::main::<Measured<Settings>>()
}
