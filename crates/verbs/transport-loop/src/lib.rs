//! Verbs over a pair of byte streams, for tests: the smallest transport that does all that the seam
//! ([`sluice_verbs::transport`]) promises. Read it to learn how to write one.
//!
//! There are two devices, and a stream between them that loses nothing. A request becomes one
//! `frame` with a copy of its bytes, which a thread writes. The other device's reading thread has it
//! carried out and answers; the answer ends the request (both `qp`).
//!
//! **Locks.** A responder is locked while it carries a request out, before all locks of the engine; what
//! follows is done behind it. What `post` locks is never held over a call into the engine.

mod frame;
mod qp;

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_verbs::transport::{NewQp, QpParams, TransportCaps};
use sluice_verbs::{Aftermath, Cq, CqTransport, Result, Transport};

use crate::frame::{ANSWER, Frame};
use crate::qp::{LoopQp, Part};

/// One of two devices. The other one notices when it is dropped.
pub struct LoopTransport(Arc<Node>, UnixStream);

/// What threads and queue pairs share.
pub(crate) struct Node {
    caps: TransportCaps,
    numbers: AtomicU32,
    parts: Mutex<HashMap<u32, Arc<Part>>>,
    /// To the thread that writes; None when the stream has ended. It is never full (`Posted::Busy`).
    outgoing: Mutex<Option<Sender<Frame>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoopTransport {
    /// Two devices that reach each other and say that they can do this much.
    pub fn pair(caps: TransportCaps) -> io::Result<[Arc<LoopTransport>; 2]> {
        let (left, right) = UnixStream::pair()?;
        // Numbers are even on one side and odd on the other: a wrong one is nobody's.
        Ok([
            Self::start(caps, left, 0x100)?,
            Self::start(caps, right, 0x101)?,
        ])
    }

    fn start(caps: TransportCaps, stream: UnixStream, number: u32) -> io::Result<Arc<Self>> {
        let (sender, frames) = channel::<Frame>();
        let node = Arc::new(Node {
            caps,
            numbers: AtomicU32::new(number),
            parts: Mutex::default(),
            outgoing: Mutex::new(Some(sender)),
        });
        let (reading, mut writing) = (stream.try_clone()?, stream.try_clone()?);
        let reader = node.clone();
        std::thread::spawn(move || reader.read_all(reading));
        std::thread::spawn(move || {
            let mut frames = frames.iter();
            frames.all(|frame| writing.write_all(&frame.emit()).is_ok())
        });
        Ok(Arc::new(Self(node, stream)))
    }
}

impl Drop for LoopTransport {
    fn drop(&mut self) {
        let _ = self.1.shutdown(Shutdown::Both);
    }
}

impl Node {
    /// A frame is to leave. False: the stream has ended.
    fn put(&self, frame: Frame) -> bool {
        let outgoing = lock(&self.outgoing);
        outgoing.as_ref().is_some_and(|to| to.send(frame).is_ok())
    }

    /// Makes all the progress that there is: no completion queue needs to ask for it.
    fn read_all(&self, stream: UnixStream) {
        let mut stream = BufReader::new(stream);
        while let Ok(frame) = Frame::read(&mut stream, self.caps.max_msg_sz.into()) {
            let part = lock(&self.parts).get(&(frame.to as u32)).cloned();
            match part {
                Some(part) if frame.what >= ANSWER => part.end(&frame),
                None if frame.what >= ANSWER => {}
                part => qp::take(self, part, frame),
            }
        }
        *lock(&self.outgoing) = None;
        self.all().iter().for_each(|part| part.give_up());
    }

    fn all(&self) -> Vec<Arc<Part>> {
        lock(&self.parts).values().cloned().collect()
    }
}

impl Transport for LoopTransport {
    fn caps(&self) -> TransportCaps {
        self.0.caps
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        let qpn = self.0.numbers.fetch_add(2, Ordering::Relaxed);
        let part = Arc::new(Part::new(&self.0, qpn, params.qp_type));
        lock(&self.0.parts).insert(qpn, part.clone());
        let transport = Box::new(LoopQp(part));
        Ok(NewQp { qpn, transport })
    }

    fn create_cq(&self, _: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(LoopCq))
    }

    fn create_srq(&self, _: bool) -> Result<u32> {
        Ok(self.0.numbers.fetch_add(2, Ordering::Relaxed))
    }
}

struct LoopCq;

impl CqTransport for LoopCq {
    fn progress(&self, _: &Cq, _: &mut Aftermath) {}
}
