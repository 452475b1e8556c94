//! Another configuration while sessions exist.

use super::connection::Stage;
use super::{Peering, PeeringError};
use crate::config::{Changes, Config};
use crate::event::{Event, Why};
use crate::frame::Kind;
use crate::identity::Identity;
use crate::places::Place;

impl Peering {
    /// Takes another configuration and what its files have now; returns what is different.
    ///
    /// Sessions go on, except with peers that would not be talked to any more, and those whose
    /// proof has changed: another key, another authority, another name of this daemon. They end
    /// with [`Why::Reconfigured`], and begin again if that is possible. A new certificate of this
    /// daemon from the same authority is used from the next session on.
    ///
    /// # Errors
    /// A new address cannot be listened at. Then everything is as it was.
    pub fn reload(&mut self, config: Config, identity: Identity) -> Result<Changes, PeeringError> {
        let changes = Changes::between(&self.config, &config);
        if changes.listen {
            // The new ones may be in the way of the old ones.
            self.listeners.clear();
            match self.listen(&config.listen) {
                Ok(listeners) => self.listeners = listeners,
                Err(error) => {
                    self.listeners = self.listen(&self.config.listen)?;
                    return Err(error);
                }
            }
            self.listeners_paused_until = None;
        }
        let former = std::mem::replace(&mut self.identity, identity);
        self.config = config;
        for problem in self.identity.problems() {
            tracing::warn!("{problem}");
        }
        self.drop_beginnings();
        for name in changes.went.iter().chain(&changes.changed) {
            self.forget_dial(name);
        }
        self.places.forget_nobody();
        for address in std::mem::take(&mut self.waiting) {
            if self.config.is_discovered(address) {
                self.waiting.push_back(address);
            } else {
                self.places.remove(address);
                let why = Why::Reconfigured;
                self.hand_over(Event::Unreachable { address, why });
            }
        }
        let sessions: Vec<(String, u64)> = self
            .sessions
            .iter()
            .map(|(name, token)| (name.clone(), *token))
            .collect();
        for (name, token) in sessions {
            let from = self.connections.get(&token).map(|c| c.remote.ip());
            let is_known = self.config.peer(&name).is_some()
                || from.is_some_and(|from| self.config.is_discovered(from));
            if !is_known || !self.identity.trusts_alike(&former, &name) {
                self.finish(token, Why::Reconfigured, Some((Kind::Bye, Vec::new())));
            }
        }
        self.plan_dials();
        Ok(changes)
    }

    /// Ends all connections that are no sessions yet: they prove what does not count any more.
    fn drop_beginnings(&mut self) {
        let beginnings = self.connections.iter();
        let beginnings = beginnings.filter(|(_, connection)| connection.stage != Stage::Up);
        let beginnings: Vec<u64> = beginnings.map(|(token, _)| *token).collect();
        for token in beginnings {
            self.connections.remove(&token);
            self.strangers.leave(token);
            // Asked again at once, if they are still to be asked.
            for address in self.places.with(Place::Asking(token)) {
                self.places.set(address, Place::Waiting);
                self.waiting.push_back(address);
            }
        }
        self.restart_dials();
    }
}
