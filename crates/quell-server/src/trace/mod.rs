//! Recorded events.
