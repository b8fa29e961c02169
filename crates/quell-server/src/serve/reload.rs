//! A reload: the file is read again, its changes are logged, and the next generation starts.
//!
//! Invariant: a file that is broken, or that cannot be applied, leaves this server as it was. Only the store may
//! have some of the queues and schedules that the file declares, where it failed after them. While it is asked,
//! exceptions from encryption are those of the file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use axum::Router;
use tracing::{error, info, warn};

use super::generation::Generation;
use super::{Server, declare, open_audit, warn_of_faults, without_password};
use crate::config::{Change, Config, Listen, changes};

/// What cannot change while a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    listen: Listen,
    socket_mode: u32,
    /// Whether there is TLS; its files may change.
    is_tls: bool,
    store: String,
    dedup_fallback: quell::trigger::DedupFallback,
    keys: Option<PathBuf>,
    /// What the file says of the exporter.
    otel: Option<String>,
}

impl Fixed {
    pub(super) fn of(config: &Config) -> Self {
        Fixed {
            listen: config.listen.clone(),
            socket_mode: config.socket_mode,
            is_tls: config.tls.is_some(),
            store: config.store.clone(),
            dedup_fallback: config.dedup_fallback,
            otel: config.otel.as_ref().map(|otel| otel.declared.clone()),
            keys: config.keys.as_ref().map(|keys| keys.path().to_owned()),
        }
    }
}

impl Fixed {
    /// The settings that are not as they were.
    fn differs(&self, before: &Fixed) -> Vec<&'static str> {
        let all = [
            ("server.listen", self.listen != before.listen),
            ("server.socket_mode", self.socket_mode != before.socket_mode),
            ("server.tls", self.is_tls != before.is_tls),
            ("store", self.store != before.store),
            ("store.dedup_fallback", self.dedup_fallback != before.dedup_fallback),
            ("encryption.keys_file", self.keys != before.keys),
            ("otel", self.otel != before.otel),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
    }
}

impl Server {
    /// Reads the file again and applies it, with a line in the log for each change.
    pub async fn reload_file(&mut self, file: &Path) {
        let config = match Config::load(file) {
            Ok(config) => config,
            Err(error) => {
                let kept = "the configuration stays as it was";
                error!(file = %file.display(), "the file is broken, {kept}:\n{error}");
                return;
            }
        };
        let before = self.text.clone();
        match self.reload(config).await {
            Ok(()) => {
                let changes = changes(&before, &self.text);
                for Change { field, before, after } in &changes {
                    let shown = |value: &Option<String>| value.as_deref().map(without_password);
                    info!(field, before = shown(before), after = shown(after), "setting changed");
                }
                info!(file = %file.display(), changes = changes.len(), "configuration reloaded");
            }
            Err(error) => {
                let kept = "the configuration stays as it was";
                error!(file = %file.display(), "the file cannot be applied, {kept}: {error:#}");
            }
        }
    }

    /// Applies a configuration. Attempts go on under the one that they started with.
    ///
    /// # Errors
    /// Why it cannot be applied: then the one before goes on.
    pub async fn reload(&mut self, mut config: Config) -> anyhow::Result<()> {
        let asks_for_tokens = config.asks_for_tokens();
        // An editor that empties the file first, or a variable that is missing, must not open the server.
        anyhow::ensure!(
            asks_for_tokens || !self.asks_for_tokens,
            "it sets none of server.tokens, server.token_env and server.token_file, and this server \
             asks for tokens: set one of them, or restart the server to have it ask for none"
        );
        let fixed = Fixed::of(&config);
        for field in fixed.differs(&self.fixed) {
            warn!(field, "the setting takes a restart, and until then the old value holds");
        }
        let (mut audit, audit_path) = (open_audit(&config)?, config.audit.clone());
        // One that was rotated is opened again, whatever becomes of the rest.
        if audit_path == self.audit_path
            && let Some(file) = audit.take()
        {
            self.common.audit.go_on_in(file);
        }
        warn_of_faults(&config);
        let (text, pair) = (config.text.clone(), config.tls.take());
        let (next, routes) = self.next(config).await?;
        if let (Some(certificate), Some(pair)) = (&self.common.tls, pair) {
            certificate.set(pair);
        }
        if let Some(file) = audit {
            self.common.audit.go_on_in(file);
        }
        let _of_before = self.routes.send_replace(routes);
        let before = std::mem::replace(&mut self.now, next);
        while let Some(ended) = self.retired.try_join_next() {
            if let Err(error) = ended.map_err(anyhow::Error::new).flatten() {
                warn!("a worker of an earlier configuration failed: {error:#}");
            }
        }
        self.retired.spawn(before.retire());
        (self.text, self.asks_for_tokens) = (text, asks_for_tokens);
        self.audit_path = audit_path;
        Ok(())
    }

    /// Declares the queues and schedules of a configuration, and starts what runs for it.
    async fn next(&self, config: Config) -> anyhow::Result<(Generation, Router)> {
        // First, as declared schedules are encrypted by them.
        let keys = self.common.keys.as_ref();
        let before = keys.zip(config.keys.as_ref()).map(|(keys, newer)| keys.take_over(newer));
        let (queues, schedules) = (&config.queues, &config.schedules);
        let declared =
            declare::apply(&self.common.quell, queues, schedules, keys, config.apply).await;
        let declared = declared.context(
            "the store may have taken some of the declared queues and schedules, and not the others",
        );
        let next = match declared {
            Ok(()) => Generation::start(&self.common, config, Some(&self.now)),
            Err(error) => Err(error),
        };
        if let (Err(_), Some(keys), Some(plain)) = (&next, keys, before) {
            keys.set_plain(plain);
        }
        next
    }
}
