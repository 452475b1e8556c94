//! A request to one of the listeners of this host that may answer it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::socket::same_user;
use crate::Errno;
use crate::address::Address;
use crate::channel::{EventKind, Key};
use crate::connector::{Asked, Search, Target};
use crate::message;
use crate::rendezvous::Candidate;

/// What is still to be tried, and until when.
pub struct HostSearch {
    host: Arc<Shared>,
    port_space: u16,
    destination: Address,
    is_datagram: bool,
    candidates: VecDeque<Candidate>,
    give_up: Instant,
    /// Until then a listener may still appear.
    absent_until: Instant,
    /// The candidates are used up and must be looked for anew.
    look_again: bool,
    /// The destination is an address of this network namespace.
    destination_is_here: bool,
}

impl HostSearch {
    pub fn new(host: &Arc<Shared>, target: &Target) -> Result<Self, Errno> {
        let around = &host.around;
        let destination = target.destination;
        let candidates = around.names.listeners(target.port_space, &destination)?;
        let now = Instant::now();
        Ok(Self {
            host: Arc::clone(host),
            port_space: target.port_space,
            destination,
            is_datagram: target.is_datagram,
            candidates: candidates.into(),
            give_up: now + around.limits.response,
            absent_until: now + around.limits.absent,
            look_again: false,
            destination_is_here: destination.is_local(),
        })
    }
}

impl Search for HostSearch {
    /// When there is none left, the destination says so itself (a service that is not there), or
    /// nobody knows it.
    fn ask(&mut self, key: Key) -> Asked {
        let now = Instant::now();
        let around = Arc::clone(&self.host.around);
        if std::mem::take(&mut self.look_again) {
            let listeners = around.names.listeners(self.port_space, &self.destination);
            self.candidates = listeners.unwrap_or_default().into();
        }
        while let Some(candidate) = self.candidates.pop_front() {
            match around.names.connect(&candidate) {
                Ok(socket) if same_user(&socket) => {
                    let number = around.number();
                    let Ok(socket) = around.poller.watch(socket, number) else {
                        continue;
                    };
                    let link = self.host.link(number, key, socket);
                    return Asked::On(Box::new(link), Some(self.give_up));
                }
                Err(Errno::AGAIN) if now < self.give_up => {
                    self.candidates.push_front(candidate);
                    return Asked::Again(now + around.limits.retry);
                }
                // Dead, or a stranger's.
                Ok(_) | Err(_) => {}
            }
        }
        if now < self.absent_until {
            self.look_again = true;
            return Asked::Again(now + around.limits.retry);
        }
        match (self.destination_is_here, self.is_datagram) {
            (true, true) => {
                Asked::Nobody(EventKind::Unreachable, i32::from(message::SIDR_UNSUPPORTED))
            }
            (true, false) => Asked::Nobody(
                EventKind::Rejected,
                i32::from(message::REJ_INVALID_SERVICE_ID),
            ),
            (false, _) => Asked::Nobody(EventKind::Unreachable, -libc::ETIMEDOUT),
        }
    }
}
