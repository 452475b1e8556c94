//! What a device sends and receives, in a pcap file.
//!
//! Our own instead of a program's: it is ready when it returns, and nothing that came before its
//! end is missing.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::namespace::Namespace;
use crate::packets::{Batch, PacketSocket, Role};
use crate::verdict::{Verdict, fail};

const LOOK: Duration = Duration::from_millis(20);

/// More than any frame; with segmentation offload a "frame" can have 64 KiB.
const FRAME_BYTES_MAX: usize = 66_000;

/// A running capture. Dropping it ends it.
pub struct Capture {
    path: PathBuf,
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    /// Ends with the number of frames that the kernel lost.
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Capture {
    /// Watches a device of the namespace from now on and writes the frames to the file.
    pub fn start(namespace: &Namespace, device: &str, path: &Path) -> io::Result<Capture> {
        let socket = namespace.inside(|| PacketSocket::open(device, Role::Watch))?;
        let file = BufWriter::new(File::create(path)?);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let frames = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&frames);
        let thread = thread::spawn(move || watch(&socket, file, &seen, &told));
        Ok(Capture {
            path: path.to_owned(),
            frames,
            stop,
            thread: Some(thread),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls the function with the frames so far.
    pub fn look<T>(&self, body: impl FnOnce(&[Vec<u8>]) -> T) -> T {
        body(&lock(&self.frames))
    }

    /// Ends it. Returns the frames that crossed the device up to now, which the file has too.
    ///
    /// Fails when the kernel lost some.
    pub fn finish(mut self) -> Verdict<Vec<Vec<u8>>> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(Ok(dropped)) = self.thread.take().map(JoinHandle::join) else {
            return fail("the capture panicked");
        };
        let dropped = dropped?;
        if dropped > 0 {
            return fail(format!("{dropped} frames were not captured"));
        }
        Ok(std::mem::take(&mut *lock(&self.frames)))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            println!("the capture panicked");
        }
    }
}

fn watch(
    socket: &PacketSocket,
    mut file: BufWriter<File>,
    frames: &Mutex<Vec<Vec<u8>>>,
    stop: &AtomicBool,
) -> io::Result<u64> {
    file.write_all(&file_header())?;
    let mut batch = Batch::new(FRAME_BYTES_MAX);
    loop {
        // Asked first: what was there before the end is taken.
        let last = stop.load(Ordering::Relaxed);
        let wait = if last { Duration::ZERO } else { LOOK };
        socket.receive(&mut batch, wait)?;
        for index in 0..batch.len() {
            let frame = batch.frame(index);
            file.write_all(&frame_header(frame.len()))?;
            file.write_all(frame)?;
            lock(frames).push(frame.to_vec());
        }
        if last && batch.is_empty() {
            break;
        }
    }
    file.flush()?;
    socket.dropped()
}

fn lock(frames: &Mutex<Vec<Vec<u8>>>) -> MutexGuard<'_, Vec<Vec<u8>>> {
    frames.lock().unwrap_or_else(PoisonError::into_inner)
}

/// draft-ietf-opsawg-pcap §4: microseconds, link type Ethernet.
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, FRAME_BYTES_MAX as u32, 1];
    for (place, word) in header.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    header
}

fn frame_header(length: usize) -> [u8; 16] {
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut header = [0; 16];
    let words = [
        time.as_secs() as u32,
        time.subsec_micros(),
        length as u32,
        length as u32,
    ];
    for (place, word) in header.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    header
}
