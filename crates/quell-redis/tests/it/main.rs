//! The store on real servers.

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod cost;
#[cfg(test)]
mod scripts;
