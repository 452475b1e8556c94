//! Closes what may take long to close in threads of its own, so that it does not hold up what other
//! programs of the same user send.
//!
//! The last close of a TCP socket with `SO_LINGER` waits until its data is acknowledged, up to
//! minutes, and ours is the last one if the program has closed its own meanwhile. What is neither a
//! socket nor memory came by mistake or to do harm.

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, getrlimit};
use sluice_sys::unix::{self, Fd};
use sluice_sys::{memfd, tcp};

/// Closes that may take long at the same time, and those that wait for their turn.
const THREADS: usize = 4;
const QUEUE_MAX: usize = 256;
/// The part of the limit of open files that waits to be closed at most: the rest is for what comes.
const QUEUE_PART: usize = 4;

/// Closes descriptors, in threads of its own where it may take long.
#[derive(Debug, Default)]
pub struct Closer {
    /// Started with the first that may take long; most programs have none.
    queue: Option<SyncSender<Fd>>,
}

impl Closer {
    /// Closes `fd`, now or soon.
    pub fn close(&mut self, fd: Fd) {
        if is_quick(fd.raw()) {
            return;
        }
        let queue = self.queue.get_or_insert_with(start);
        match queue.try_send(fd) {
            Ok(()) => {}
            // Somebody makes hundreds of them at a time, or there is no thread.
            Err(TrySendError::Full(fd) | TrySendError::Disconnected(fd)) => close_at_once(fd),
        }
    }
}

/// Whether a close of this is short.
fn is_quick(fd: RawFd) -> bool {
    match tcp::is_tcp(fd) {
        // Without a limit of seconds it is reset at once, or sent in the background.
        Ok(true) => matches!(unix::linger(fd), Ok(None | Some(0)) | Err(_)),
        // Another kind of socket: it may have descriptors in its queue.
        Ok(false) => false,
        Err(_) => memfd::seals(fd).is_ok(),
    }
}

/// Closes without waiting for what a socket has not sent: the kernel sends it in the background. If
/// its program has it open still, that program's own close will not wait either, which is the price
/// of having sent hundreds that linger.
fn close_at_once(fd: Fd) {
    // Nothing else has the option.
    let _ = set_socket_linger(&fd, None);
    drop(fd);
}

fn queue_max(open_files_max: Option<u64>) -> usize {
    let part = open_files_max.map(|it| usize::try_from(it).unwrap_or(usize::MAX) / QUEUE_PART);
    part.unwrap_or(QUEUE_MAX).min(QUEUE_MAX)
}

fn start() -> SyncSender<Fd> {
    let (sender, receiver) = sync_channel(queue_max(getrlimit(Resource::Nofile).current));
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let receiver = Arc::clone(&receiver);
        let started = thread::Builder::new()
            .name("closer".into())
            .spawn(move || close_all(&receiver));
        if let Err(error) = started {
            tracing::warn!(reason = %error, "cannot start a thread to close sockets: {error}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    /// A socket whose close takes an hour: its peer reads nothing of what it has sent.
    fn lingering(listener: &TcpListener) -> (Fd, TcpStream) {
        use std::io::Write;
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        while socket.write(&[0; 65_536]).is_ok() {}
        set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (Fd::from(OwnedFd::from(socket)), peer)
    }

    #[test]
    fn what_waits_leaves_descriptors_for_what_comes() {
        assert_eq!(queue_max(Some(256)), 64);
        assert_eq!(queue_max(Some(0)), 0);
        assert_eq!(queue_max(Some(1 << 20)), QUEUE_MAX);
        assert_eq!(queue_max(None), QUEUE_MAX);
    }

    #[test]
    fn no_number_of_lingering_sockets_holds_anybody_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Small buffers, which accepted sockets inherit: they are all full.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut closer = Closer::default();
            let peers: Vec<TcpStream> = (0..THREADS + QUEUE_MAX + 10)
                .map(|_| {
                    let (socket, peer) = lingering(&listener);
                    closer.close(socket);
                    peer
                })
                .collect();
            done.send(peers.len()).unwrap();
            // The closer's threads wait for these.
            thread::sleep(Duration::from_secs(3600));
        });
        let closed = wait.recv_timeout(Duration::from_secs(180));
        assert_eq!(closed, Ok(THREADS + QUEUE_MAX + 10));
    }
}
