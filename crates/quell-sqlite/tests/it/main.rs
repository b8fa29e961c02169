//! The suite on SQLite files, and what only SQLite can get wrong.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod alerts;
mod backup;
mod budget;
mod cancel;
mod checkup;
mod clock;
mod conformance;
mod cost;
mod counts;
mod damage;
mod ending;
mod files;
mod first_release;
mod gone;
mod inbox;
mod power;
mod scene;
mod sharing;
mod sim;
mod steps;
mod timelines;
mod upkeep;
