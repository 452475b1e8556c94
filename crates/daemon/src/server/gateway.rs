//! Gateways: between programs, the gateway's process, and the daemons of other hosts.

use std::path::Path;
use std::time::Instant;

use sluice_control::message::gateway::{Ask, Ranges, Tell};
use sluice_control::message::{FromDaemon, Reason, VERSION};
use sluice_control::preface::{Key, NOWHERE};
use sluice_sys::unix::Received;

use super::Server;
use crate::fabric::{Fabric, Heard};
use crate::gateway::{Action, Gateway};
use crate::matching::ClientId;

/// Behind the path of the control socket: what programs of this host have published.
const FILE_SUFFIX: &str = ".published";

/// Gateways, if there are peers at all.
pub(super) fn begin(fabric: Option<&Fabric>, socket: &Path, now: Instant) -> Option<Gateway> {
    let config = fabric?.config();
    let mut file = socket.as_os_str().to_owned();
    file.push(FILE_SUFFIX);
    Some(Gateway::new(config, file.into(), now))
}

impl Server {
    /// A client asks something. An error ends its connection.
    pub(super) fn asked_of_gateways(
        &mut self,
        id: ClientId,
        ask: Ask,
        received: &mut Received,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get(&id) else {
            return Ok(());
        };
        let uid = client.credentials.uid;
        let is_owner = uid == self.uid || uid == 0;
        if self.gateway.is_none() {
            self.send(id, &FromDaemon::Gateway(without_peers(ask)), &[]);
            return Ok(());
        }
        if ask == Ask::Serve {
            // Before anything that is said to the gateway's process.
            let welcome = FromDaemon::Welcome {
                version: VERSION,
                client: id,
            };
            self.send(id, &welcome, &[]);
        }
        let (Some(gateway), Some(fabric)) = (&mut self.gateway, &self.fabric) else {
            return Ok(());
        };
        let socket = received.take_fd(0);
        let asked = gateway.ask(id, is_owner, ask, socket, fabric, Instant::now());
        asked.map_err(|_| Reason::Protocol)?;
        self.act_for_gateways();
        Ok(())
    }

    /// Takes what was heard from peers, and does what is due.
    pub(super) fn turn_gateway(&mut self) {
        let (Some(gateway), Some(fabric)) = (&mut self.gateway, &mut self.fabric) else {
            return;
        };
        let now = Instant::now();
        for heard in fabric.take_heard() {
            match heard {
                Heard::Up(name) => gateway.peer_up(&name, fabric),
                Heard::Down(name) => gateway.peer_down(&name),
                Heard::Word(name, bytes) => gateway.heard(&name, &bytes, fabric, now),
            }
        }
        if gateway.next_deadline().is_some_and(|due| due <= now) {
            gateway.pass_time(now, fabric);
        }
        self.act_for_gateways();
    }

    fn act_for_gateways(&mut self) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        for action in gateway.take_actions() {
            match action {
                Action::Tell(client, tell) => {
                    if !self.send(client, &FromDaemon::Gateway(tell), &[]) {
                        // What it does not read it does not know: it begins again.
                        self.remove(client);
                    }
                }
                Action::Say(name, word) => {
                    if let Some(fabric) = &mut self.fabric {
                        fabric.say_of_gateways(&name, &word);
                    }
                }
                Action::Drop(name, why) => {
                    if let Some(fabric) = &mut self.fabric {
                        fabric.drop_peer(&name, why);
                    }
                }
            }
        }
    }
}

/// What a daemon says that has no peers, and so no gateways.
fn without_peers(ask: Ask) -> Tell {
    let errno = libc::EACCES as u16;
    match ask {
        Ask::Publish { .. } => Tell::Published {
            errno,
            key: Key([0; 32]),
            sources: Ranges::new([]),
        },
        Ask::Way { .. } => Tell::Way {
            errno,
            address: NOWHERE,
            exit: 0,
            key: Key([0; 32]),
            direct: Ranges::new([]),
        },
        _ => Tell::Done { errno },
    }
}
