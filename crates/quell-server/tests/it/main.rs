//! What the commands do, seen from outside: one test binary, one module per command.

#[cfg(test)]
mod access;
#[cfg(test)]
mod actions;
#[cfg(test)]
mod alerts;
#[cfg(test)]
mod api;
#[cfg(test)]
mod azure;
#[cfg(test)]
mod backup;
#[cfg(test)]
mod binary;
#[cfg(test)]
mod bounds;
#[cfg(test)]
mod builds;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod check;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod config;
#[cfg(test)]
mod crowds;
#[cfg(test)]
mod dead;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod effects;
#[cfg(test)]
mod encryption;
#[cfg(test)]
mod ending;
#[cfg(test)]
mod exact;
#[cfg(test)]
mod filters;
#[cfg(test)]
mod handlers;
#[cfg(test)]
mod health;
#[cfg(test)]
mod https;
#[cfg(test)]
mod installed;
#[cfg(test)]
mod logged;
#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod official;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod operator;
#[cfg(test)]
mod outcomes;
#[cfg(test)]
mod outputs;
#[cfg(test)]
mod overview;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod pictures;
#[cfg(test)]
mod program;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod proxies;
#[cfg(test)]
mod pull;
#[cfg(test)]
mod pull_ends;
#[cfg(test)]
mod queues;
#[cfg(test)]
mod quiet_logs;
#[cfg(test)]
mod recent;
#[cfg(test)]
mod redact;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod results;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod scrapes;
#[cfg(test)]
mod served;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod socket;
#[cfg(test)]
mod source_logs;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod ssrf;
#[cfg(test)]
mod tail;
#[cfg(test)]
mod task_thresholds;
#[cfg(test)]
mod telemetry;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod top;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod unreadable;
