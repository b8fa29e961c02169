//! The store on a real PostgreSQL server.

#[cfg(test)]
mod alerts;
#[cfg(test)]
mod budget;
#[cfg(test)]
mod checkup;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod conflicts;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod cost;
#[cfg(test)]
mod counts;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod folds;
#[cfg(test)]
mod functions;
#[cfg(test)]
mod heads;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod inbox;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod notify;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod pooler;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod releases;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod savepoints;
#[cfg(test)]
mod scarce;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod silent;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod stopped;
#[cfg(test)]
mod timelines;
#[cfg(test)]
mod trail;
#[cfg(test)]
mod warm;
