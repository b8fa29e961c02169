//! That the servers which other tests stand on do what they say.

mod cluster;
mod redis;
