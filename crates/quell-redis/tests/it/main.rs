//! The store on real servers.

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod conformance;
