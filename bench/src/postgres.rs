//! Quell on PostgreSQL.

use std::time::Duration;

use crate::place::Place;
use crate::workload::{self, Sizes};

pub(crate) async fn try_all(server: &str, sizes: Sizes) -> anyhow::Result<()> {
    let place = Place::Postgres { server: server.to_owned() };
    let s = sizes;
    let only = std::env::var("ONLY").unwrap_or_default();
    let on = |n: &str| only.is_empty() || only.contains(n);
    if on("batch") {
        eprintln!("batch {}", workload::batch(&place, s.batch).await?);
    }
    if on("drain") {
        eprintln!("drain {}", workload::drain(&place, s.drain).await?);
    }
    if on("single") {
        eprintln!("single 32 {}", workload::single(&place, 32, s.single).await?);
    }
    if on("single") {
        eprintln!("single 512 {}", workload::single(&place, 512, s.batch).await?);
    }
    if on("deb") {
        eprintln!("deb 32 {}", workload::debounced(&place, 32, 100, s.single).await?);
    }
    if on("deb") {
        eprintln!("deb 512 {}", workload::debounced(&place, 512, 100, s.debounced).await?);
    }
    if on("lat") {
        eprintln!("lat p50 {}", workload::latency(&place, s.latency, 0.5).await?);
    }
    if on("lat") {
        eprintln!("lat p99 {}", workload::latency(&place, s.latency, 0.99).await?);
    }
    if on("idle") {
        eprintln!("idle {}", workload::after_idle(&place, Duration::from_secs(5)).await?);
    }
    Ok(())
}
