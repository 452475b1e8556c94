//! Gateways: between programs, the gateway's process, and the daemons of other hosts.

use std::time::Instant;

use rustix::event::epoll;
use sluice_control::message::gateway::{Ask, Ranges, Tell};
use sluice_control::message::{FromDaemon, MESSAGE_BYTES_MAX, Reason, VERSION};
use sluice_control::preface::{Key, NOWHERE};
use sluice_sys::errno::Errno;
use sluice_sys::unix;

use super::{Server, WATCHED};
use crate::config::Config;
use crate::fabric::{Fabric, Heard};
use crate::gateway::{Action, Asker, Gateway};
use crate::matching::ClientId;
use crate::receiver::Brought;

/// Behind the path of the control socket: what programs of this host have published.
const FILE_SUFFIX: &str = ".published";

/// Gateways, if there are peers at all.
pub(super) fn begin(fabric: Option<&Fabric>, config: &Config, now: Instant) -> Option<Gateway> {
    let peers = fabric?.config();
    let mut file = config.socket.as_os_str().to_owned();
    file.push(FILE_SUFFIX);
    let share = config.user_share;
    Some(Gateway::new(peers, file.into(), share, now))
}

impl Server {
    /// A client asks something, by a message of the user `sender`. An error ends its connection.
    pub(super) fn asked_of_gateways(
        &mut self,
        (id, sender): (ClientId, Option<u32>),
        ask: Ask,
        brought: &Brought,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get(&id) else {
            return Ok(());
        };
        let asker = Asker {
            client: id,
            is_owner: self.is_owner(id, sender),
            payer: client.payer,
            user: sender,
        };
        if self.gateway.is_none() {
            self.send(id, &FromDaemon::Gateway(without_peers(ask)), &[]);
            return Ok(());
        }
        if ask == Ask::Serve && asker.is_owner {
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
        let listening = match brought {
            Brought::Listening(listening) => listening.map_err(Errno),
            _ => Err(Errno::INVAL),
        };
        let asked = gateway.ask(asker, ask, listening, fabric, Instant::now());
        asked?;
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
        for action in gateway.take_actions(Instant::now()) {
            match action {
                Action::Tell(client, tell) => self.tell_of_gateways(client, tell),
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
        self.send_to_process();
    }

    fn tell_of_gateways(&mut self, client: ClientId, tell: Tell) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        match gateway.tell_process(client, tell) {
            Ok(true) => {}
            Ok(false) => {
                // A program waits for one answer, for which there is room.
                if !self.send(client, &FromDaemon::Gateway(tell), &[]) {
                    self.remove(client);
                }
            }
            Err(_) => {
                tracing::error!("the gateway's process does not listen any more: it begins again");
                self.remove(client);
            }
        }
    }

    /// Sends what waits for the gateway's process, as far as there is room.
    fn send_to_process(&mut self) {
        let Some((process, outbox)) = self.gateway.as_mut().and_then(Gateway::outbox) else {
            return;
        };
        let Some(socket) = self.receivers.socket(process) else {
            return;
        };
        let sent = outbox.send(|tell| {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let message = FromDaemon::Gateway(*tell);
            let bytes = message.encode(&mut buffer);
            unix::send_with_fds(socket.raw(), bytes, &[]).map(drop)
        });
        let waits = !outbox.is_empty();
        let watched = if sent.is_ok() && waits != outbox.is_watched {
            outbox.is_watched = waits;
            let mut events = WATCHED;
            events.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(process.into());
            epoll::modify(&self.poll, socket, data, events)
        } else {
            Ok(())
        };
        if sent.is_err() || watched.is_err() {
            self.remove(process);
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
