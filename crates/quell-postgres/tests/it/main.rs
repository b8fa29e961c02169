//! The store on a real PostgreSQL server.

#[cfg(test)]
mod conformance;
