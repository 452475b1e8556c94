//! Closes sockets whose close may take long.
//!
//! The last close of a TCP socket with `SO_LINGER` waits until its data is acknowledged, up to
//! minutes, and sluiced's copy is the last one if the program has closed its own meanwhile.

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::net::sockopt::set_socket_linger;
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
            // Somebody makes hundreds of them at a time, or there is no thread.
            Err(TrySendError::Full(socket) | TrySendError::Disconnected(socket)) => {
                close_at_once(socket);
            }
        }
    }
}

fn lingers(socket: RawFd) -> bool {
    let mut linger = [0; 8];
    let got = get_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger);
    // l_onoff and l_linger; with zero seconds the connection is reset at once.
    matches!(got, Ok(8)) && linger[..4] != [0; 4] && linger[4..] != [0; 4]
}

/// Closes without waiting, whatever the socket says: the kernel sends what is unsent in the
/// background. If its program has it open still, that program's own close will not wait either,
/// which is the price of having announced hundreds of sockets that linger.
fn close_at_once(socket: Fd) {
    if let Err(error) = set_socket_linger(&socket, None) {
        tracing::warn!(reason = %error, "a socket that lingers cannot be told not to: {error}");
    }
    drop(socket);
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
        let closed = wait.recv_timeout(Duration::from_secs(60));
        assert_eq!(closed, Ok(THREADS + QUEUE_MAX + 10));
    }
}
