//! Another configuration while sluiced runs.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use rustix::event::epoll;
use sluice_peering::Identity;
use sluice_peering::config::Config;

use super::{RELOAD, Server};
use crate::notify::Manager;

/// Who says when, and who is told.
#[derive(Debug)]
pub(super) struct Reload {
    told: UnixStream,
    manager: Manager,
}

impl Server {
    /// Reads the configuration again whenever something can be read from `told`, and says so to the
    /// service manager.
    ///
    /// # Errors
    /// The kernel does not let us wait for it.
    pub fn reload_when(&mut self, told: UnixStream, manager: Manager) -> io::Result<()> {
        told.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(RELOAD);
        epoll::add(&self.poll, &told, data, epoll::EventFlags::IN)?;
        self.reload = Some(Reload { told, manager });
        Ok(())
    }

    pub(super) fn reload_if_told(&mut self) {
        let Some(reload) = self.reload.take() else {
            return;
        };
        let mut told = &reload.told;
        if matches!(told.read(&mut [0; 64]), Ok(1..)) {
            reload.manager.reloading();
            self.reload();
            reload.manager.ready("the configuration was read again");
        }
        self.reload = Some(reload);
    }

    /// Reads the configuration again. One that cannot be used changes nothing, and the log says so,
    /// as it does of what takes a new start.
    fn reload(&mut self) {
        let Some(fabric) = &mut self.fabric else {
            tracing::warn!("there is nothing to reload: sluiced was started without --config");
            return;
        };
        let path = fabric.config().path.clone();
        let read = Config::load(&path).map_err(|error| error.to_string());
        let read = read.and_then(|config| match Identity::load(&config) {
            Ok(identity) => Ok((config, identity)),
            Err(error) => Err(error.to_string()),
        });
        let (config, identity) = match read {
            Ok(read) => read,
            Err(reason) => {
                tracing::error!(%reason, "the configuration stays as it was: {reason}");
                return;
            }
        };
        let now = fabric.config();
        let metrics_changed = now.metrics != config.metrics;
        let gateways_changed = now.gateway != config.gateway || now.publishing != config.publishing;
        let changes = match fabric.reload(config, identity) {
            Ok(changes) => changes,
            Err(error) => {
                tracing::error!(reason = %error, "the configuration stays as it was: {error}");
                return;
            }
        };
        for (what, has_changed) in [
            ("option", changes.option),
            ("device", changes.device),
            ("threads", changes.threads),
            ("capture", changes.capture),
            ("windows", changes.windows),
            ("metrics", metrics_changed),
            ("gateway", gateways_changed),
        ] {
            if has_changed {
                tracing::warn!(
                    key = what,
                    "`{what}` has changed, which counts when sluiced is started again"
                );
            }
        }
        tracing::info!(
            came = changes.came.len(),
            went = changes.went.len(),
            changed = changes.changed.len(),
            rules = changes.rules,
            "the configuration was read again: {} new peers, {} gone, {} changed",
            changes.came.len(),
            changes.went.len(),
            changes.changed.len(),
        );
    }
}
