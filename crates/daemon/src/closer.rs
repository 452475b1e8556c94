//! Closes sockets whose close may take long.
//!
//! The last close of a TCP socket with `SO_LINGER` waits until its data is acknowledged, up to
//! minutes, and sluiced's copy is the last one if the program has closed its own meanwhile.

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use sluice_sys::unix::{Fd, get_option};

/// Sockets that linger at the same time, and those that wait for their turn.
const THREADS: usize = 4;
const QUEUE_MAX: usize = 256;

/// Closes sockets, in threads of its own where it may take long.
#[derive(Debug, Default)]
pub struct Closer {
    /// Started with the first socket that lingers; most programs have none.
    queue: Option<SyncSender<Fd>>,
}

impl Closer {
    /// Closes `socket`, now or soon.
    pub fn close(&mut self, socket: Fd) {
        if !lingers(socket.raw()) {
            return;
        }
        let queue = self.queue.get_or_insert_with(start);
        match queue.try_send(socket) {
            Ok(()) => {}
            // Somebody makes hundreds of them at a time. Waiting for one is the lesser evil,
            // since open files are bounded too.
            Err(TrySendError::Full(socket) | TrySendError::Disconnected(socket)) => drop(socket),
        }
    }
}

fn lingers(socket: RawFd) -> bool {
    let mut linger = [0; 8];
    let got = get_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger);
    // l_onoff and l_linger; with zero seconds the connection is reset at once.
    matches!(got, Ok(8)) && linger[..4] != [0; 4] && linger[4..] != [0; 4]
}

fn start() -> SyncSender<Fd> {
    let (sender, receiver) = sync_channel(QUEUE_MAX);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let receiver = Arc::clone(&receiver);
        let started = thread::Builder::new()
            .name("closer".into())
            .spawn(move || close_all(&receiver));
        if let Err(error) = started {
            tracing::warn!("cannot start a thread to close sockets: {error}");
        }
    }
    sender
}

fn close_all(receiver: &Mutex<Receiver<Fd>>) {
    loop {
        let next = receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        match next {
            Ok(socket) => drop(socket),
            Err(_) => return,
        }
    }
}
