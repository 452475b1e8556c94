//! The requester's way to a peer process: connecting, up, or over.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use sluice_sys::unix;

use crate::area::OwnArea;
use crate::link::Outgoing;
use crate::os::{self, LocalFd};
use sluice_verbs::locks::lock;

const CONNECTING: u32 = 0;
const UP: u32 = 1;
const DOWN: u32 = 2;

/// A way to a peer process.
pub struct Route {
    pub id: u64,
    stage: AtomicU32,
    pub socket: LocalFd,
    /// The peer rings here.
    pub bell: LocalFd,
    own: Mutex<Option<OwnArea>>,
    pub up: OnceLock<Outgoing>,
    /// Places of queue pairs that wait for the connection.
    waiting: Mutex<Vec<u32>>,
}

impl Route {
    /// One that waits for the peer's answer. `own` is for the requests.
    pub fn new(id: u64, socket: LocalFd, bell: LocalFd, own: OwnArea) -> Self {
        Self {
            id,
            stage: AtomicU32::new(CONNECTING),
            socket,
            bell,
            own: Mutex::new(Some(own)),
            up: OnceLock::new(),
            waiting: Mutex::default(),
        }
    }

    /// The link, while it is one.
    pub fn link(&self) -> Option<&Outgoing> {
        if self.stage.load(Ordering::Acquire) == UP {
            self.up.get()
        } else {
            None
        }
    }

    pub fn is_down(&self) -> bool {
        self.stage.load(Ordering::Acquire) == DOWN
    }

    /// Whether it leads to a process that is there. The engine thread may be about to hear that
    /// one has ended whose numbers another one has by now.
    pub fn leads_on(&self) -> bool {
        !self.is_down() && !unix::has_hung_up(self.socket.raw())
    }

    pub fn set_down(&self) {
        self.stage.store(DOWN, Ordering::Release);
    }

    /// Ends the link; the engine thread sees it and clears up.
    pub fn break_off(&self) {
        os::shutdown(self.socket.raw());
    }

    /// Whether the peer's process ended with its queue pair `peer_qpn` in place. One that
    /// destroyed it before has said goodbye, and receives may go on waiting as on other hardware.
    pub fn ended_connected(&self, own_qpn: u32, peer_qpn: u32) -> bool {
        let Some(link) = self.up.get() else {
            return true;
        };
        link.peer.has_connected(own_qpn, peer_qpn)
    }

    /// Remembers who wants to hear of the connection. False if there is nothing to wait for.
    pub fn wait(&self, slot: u32) -> bool {
        let mut waiting = lock(&self.waiting);
        if self.stage.load(Ordering::Acquire) != CONNECTING {
            return false;
        }
        if !waiting.contains(&slot) {
            waiting.push(slot);
        }
        true
    }

    pub fn take_waiting(&self) -> Vec<u32> {
        core::mem::take(&mut lock(&self.waiting))
    }

    /// The memory for the requests, once.
    pub fn take_own(&self) -> Option<OwnArea> {
        lock(&self.own).take()
    }

    /// The link is there. Who waits for it is to be told by the caller.
    pub fn set_up(&self, link: Outgoing) {
        let _ = self.up.set(link);
        let _guard = lock(&self.waiting);
        self.stage.store(UP, Ordering::Release);
    }
}
