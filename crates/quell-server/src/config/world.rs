//! What would fail at run time although the settings are valid: what they name outside of the file.
//!
//! `quell serve --check` refuses it, and a server warns of it at its start, as it may be fixed meanwhile.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use super::Config;
use crate::handlers::Handler;

/// A setting and what is wrong with what it names.
pub(crate) type Fault = (String, String);

/// What is wrong with the commands and targets of tasks and alerts.
pub(crate) fn of_handlers(config: &Config) -> Vec<Fault> {
    let tasks = config.tasks.iter().filter_map(|(name, task)| {
        let handler = task.handler.as_ref()?;
        Some((format!("tasks.{name}"), handler))
    });
    let sinks = config.alerts.iter().flat_map(|declared| {
        let path = format!("alerts.{}", declared.alert.name);
        declared.sinks.values().map(move |handler| (path.clone(), handler))
    });
    let faults = tasks.chain(sinks).filter_map(|(path, handler)| {
        let (kind, fault) = match handler {
            Handler::Exec(exec) => ("exec", exec.fault()),
            Handler::Http(http) => ("http", http.fault()),
        };
        let (field, message) = fault?;
        Some((format!("{path}.{kind}.{field}"), message))
    });
    faults.collect()
}

/// All that is wrong, but for an address in use: a server that runs with this file uses it.
pub(super) fn faults(config: &Config) -> Vec<Fault> {
    let mut faults = of_handlers(config);
    faults.extend(of_address(config));
    faults.extend(of_store(&config.store));
    faults
}

fn of_address(config: &Config) -> Option<Fault> {
    let error = TcpListener::bind(config.listen).err()?;
    let message = format!("cannot listen on {}: {error}", config.listen);
    (error.kind() != ErrorKind::AddrInUse).then(|| ("server.listen".to_owned(), message))
}

/// Whether another process listens at the address.
pub(crate) fn is_in_use(config: &Config) -> bool {
    let bound = TcpListener::bind(config.listen);
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// The folder of an SQLite file; other stores are elsewhere.
fn of_store(url: &str) -> Option<Fault> {
    let file = url.strip_prefix("sqlite://")?.split('?').next()?;
    let folder = Path::new(file).parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let shown = folder.display();
    let message = match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => format!("{shown} is no folder"),
        Err(error) => format!("the folder {shown} cannot be used: {error}"),
    };
    Some(("store.url".to_owned(), message))
}
