//! What a device sends and receives, in a pcap file.
//!
//! Our own instead of a program's: it is ready when it returns, and nothing that came before its
//! end is missing.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::hosts::namespace::Namespace;
use crate::hosts::packets::{Batch, PacketSocket, Role};
use crate::suite::{Verdict, fail};

const LOOK: Duration = Duration::from_millis(20);

/// More than any frame; with segmentation offload a "frame" can have 64 KiB.
const FRAME_BYTES_MAX: usize = 66_000;

/// A running capture. Dropping it ends it.
pub struct Capture {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Captured>>>,
}

struct Captured {
    frames: Vec<Vec<u8>>,
    dropped: u64,
}

impl Capture {
    /// Watches a device of the namespace from now on and writes the frames to the file.
    pub fn start(namespace: &Namespace, device: &str, path: &Path) -> io::Result<Capture> {
        let socket = namespace.inside(|| PacketSocket::open(device, Role::Watch))?;
        let file = BufWriter::new(File::create(path)?);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || watch(&socket, file, &told));
        Ok(Capture {
            path: path.to_owned(),
            stop,
            thread: Some(thread),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends it. Returns the frames that crossed the device up to now, which the file has too.
    ///
    /// Fails when the kernel lost some.
    pub fn finish(mut self) -> Verdict<Vec<Vec<u8>>> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(Ok(captured)) = self.thread.take().map(JoinHandle::join) else {
            return fail("the capture panicked");
        };
        let captured = captured?;
        if captured.dropped > 0 {
            return fail(format!("{} frames were not captured", captured.dropped));
        }
        Ok(captured.frames)
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
    stop: &AtomicBool,
) -> io::Result<Captured> {
    file.write_all(&file_header())?;
    let mut batch = Batch::new(FRAME_BYTES_MAX);
    let mut frames = Vec::new();
    loop {
        // Asked first: what was there before the end is taken.
        let last = stop.load(Ordering::Relaxed);
        let wait = if last { Duration::ZERO } else { LOOK };
        socket.receive(&mut batch, wait)?;
        for index in 0..batch.len() {
            let frame = batch.frame(index);
            file.write_all(&frame_header(frame.len()))?;
            file.write_all(frame)?;
            frames.push(frame.to_vec());
        }
        if last && batch.is_empty() {
            break;
        }
    }
    file.flush()?;
    Ok(Captured {
        frames,
        dropped: socket.dropped()?,
    })
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
