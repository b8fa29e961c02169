//! What would fail at run time although the settings are valid: what they name outside of the file.
//!
//! `quell serve --check` refuses it, and a server warns of it at its start, as it may be fixed meanwhile.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Config, Place};
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
    faults.extend(of_places(config));
    faults.extend(of_store(&config.store));
    faults
}

fn of_places(config: &Config) -> impl Iterator<Item = Fault> {
    let fault = |place: &Place| match place {
        Place::Tcp(address) => {
            let error = TcpListener::bind(address).err()?;
            let message = format!("cannot listen on {address}: {error}");
            (error.kind() != ErrorKind::AddrInUse).then_some(message)
        }
        Place::Unix(path) => of_folder(path),
    };
    let faults = config.listen.places().iter().filter_map(fault);
    faults.map(|message| ("server.listen".to_owned(), message))
}

/// The places where another process listens.
pub(crate) fn in_use(config: &Config) -> impl Iterator<Item = &Place> {
    config.listen.places().iter().filter(|place| match place {
        Place::Tcp(address) => {
            TcpListener::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        }
        Place::Unix(path) => UnixStream::connect(path).is_ok(),
    })
}

/// The folder of an SQLite file; other stores are elsewhere.
fn of_store(url: &str) -> Option<Fault> {
    let file = url.strip_prefix("sqlite://")?.split('?').next()?;
    of_folder(Path::new(file)).map(|message| ("store.url".to_owned(), message))
}

/// What is wrong with the folder in which a file is to be made.
fn of_folder(file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(format!("{shown} is no folder")),
        Err(error) => Some(format!("the folder {shown} cannot be used: {error}")),
    }
}
