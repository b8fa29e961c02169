//! That the servers which other tests stand on do what they say.

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod redis;
