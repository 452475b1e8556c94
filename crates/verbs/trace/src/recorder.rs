//! The bounded buffer between queue pairs and the file, and the thread that empties it.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sluice_wire::Psn;
use sluice_wire::capture::{self, Direction, Format, PACKET_OVERHEAD_MAX};
use sluice_wire::frame::OVERHEAD_MAX;
use sluice_wire::packet::Headers;

use crate::flow::Flow;
use crate::packets::{Kind, Part};

/// Bytes that wait to be written, at most: messages and what is known about them.
pub const BUFFER_BYTES: usize = 64 << 20;
/// Messages are kept in pieces of this size, so that what does not fit is dropped piece by piece.
/// A multiple of every MTU.
const PIECE_BYTES: usize = 64 << 10;
/// What a piece costs besides its bytes.
const ENTRY_BYTES: usize = 256;
/// How long the writer lets work gather.
const GATHER: Duration = Duration::from_millis(2);
/// Bytes of the longest frame that is made here: 4096 of payload and their pad.
const FRAME_BYTES_MAX: usize = 4096 + 4 + Headers::BYTES_MAX + OVERHEAD_MAX;
/// How often the file is told what is missing.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Collected before they are written.
const FILE_BUFFER_BYTES: usize = 256 << 10;

const _: () = assert!(PIECE_BYTES.is_multiple_of(4096));

/// A message that a transport sends or has received.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Between whom.
    pub flow: &'a Arc<Flow>,
    /// Which way.
    pub direction: Direction,
    /// Of its first packet.
    pub psn: Psn,
    /// What it is.
    pub kind: Kind,
    /// Bytes of data; 0 for kinds without.
    pub len: u32,
}

struct Entry {
    direction: Direction,
    time_ns: u64,
    body: Body,
    /// Of a message's piece, or a whole frame.
    bytes: Vec<u8>,
}

enum Body {
    /// Part of a message, to be made into packets.
    Piece {
        flow: Arc<Flow>,
        psn: Psn,
        kind: Kind,
        total: u32,
        offset: u32,
    },
    /// A packet as it is.
    Frame,
}

impl Entry {
    fn cost(&self) -> usize {
        self.bytes.len() + ENTRY_BYTES
    }
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// The writer waits for the first entry.
    asleep: bool,
    closing: bool,
    /// The writer has ended.
    summary: Option<Summary>,
}

/// What became of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets in the file.
    pub written: u64,
    /// Packets that are not in it, because the buffer was full or the file could not be written.
    pub dropped: u64,
    /// The first error of the file.
    pub error: Option<String>,
}

/// Takes messages and packets from any number of threads.
pub struct Recorder {
    queue: Mutex<Queue>,
    /// There is a first entry, or the end has come.
    work: Condvar,
    /// The buffer is half full, or the end has come.
    hurry: Condvar,
    /// The writer has ended.
    ended: Condvar,
    /// Bytes that wait.
    waiting: AtomicUsize,
    limit: usize,
    /// Packets.
    dropped: AtomicU64,
    off: AtomicBool,
}

impl Recorder {
    /// A recorder and its writer, which somebody must [`Writer::run`] on a thread of its own.
    /// `program` is named in the file.
    ///
    /// Fails if the beginning of the file cannot be written.
    pub fn new<W: Write>(
        file: W,
        format: Format,
        program: &str,
    ) -> io::Result<(Arc<Self>, Writer<W>)> {
        Self::with_limit(file, format, program, BUFFER_BYTES)
    }

    /// The same with another bound for what waits, bytes.
    pub fn with_limit<W: Write>(
        file: W,
        format: Format,
        program: &str,
        limit: usize,
    ) -> io::Result<(Arc<Self>, Writer<W>)> {
        let recorder = Arc::new(Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            hurry: Condvar::new(),
            ended: Condvar::new(),
            waiting: AtomicUsize::new(0),
            limit,
            dropped: AtomicU64::new(0),
            off: AtomicBool::new(false),
        });
        let mut writer = Writer {
            recorder: recorder.clone(),
            file: BufWriter::with_capacity(FILE_BUFFER_BYTES, file),
            format,
            packet: Vec::new(),
            written: 0,
            lost: 0,
            error: None,
            told: None,
        };
        let mut head = [0; 1024];
        let used = capture::begin(format, program, "sluice0", &mut head)
            .map_err(|error| io::Error::other(error.to_string()))?;
        writer
            .file
            .write_all(head.get(..used).unwrap_or_default())?;
        writer.file.flush()?;
        Ok((recorder, writer))
    }

    /// Takes a message. `fill` is asked for the bytes at an offset of it, once for each piece
    /// that there is room for. Waits for nothing but short locks.
    pub fn record(&self, message: &Message<'_>, mut fill: impl FnMut(usize, &mut [u8])) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let time_ns = now_ns();
        let mut offset = 0;
        // One turn for each piece of at most 2³² bytes.
        loop {
            let len = (message.len as usize - offset).min(PIECE_BYTES);
            self.record_piece(message, offset, len, time_ns, &mut fill);
            offset += len;
            if offset >= message.len as usize {
                return;
            }
        }
    }

    fn record_piece(
        &self,
        message: &Message<'_>,
        offset: usize,
        len: usize,
        time_ns: u64,
        fill: &mut impl FnMut(usize, &mut [u8]),
    ) {
        let packets = message.flow.mtu.packets(len as u64);
        self.put(len, packets, || {
            let mut bytes = vec![0; len];
            fill(offset, &mut bytes);
            Entry {
                direction: message.direction,
                time_ns,
                body: Body::Piece {
                    flow: message.flow.clone(),
                    psn: message.psn,
                    kind: message.kind,
                    total: message.len,
                    offset: offset as u32,
                },
                bytes,
            }
        });
    }

    /// Takes a packet that is there already, from Ethernet header to ICRC: `make` writes its
    /// `len` bytes, if there is room for them. Waits for nothing but short locks.
    pub fn record_frame(&self, direction: Direction, len: usize, make: impl FnOnce() -> Vec<u8>) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let time_ns = now_ns();
        self.put(len, 1, || Entry {
            direction,
            time_ns,
            body: Body::Frame,
            bytes: make(),
        });
    }

    /// Puts something of `len` bytes into the buffer, which will be so many packets, if there is
    /// room.
    fn put(&self, len: usize, packets: u64, make: impl FnOnce() -> Entry) {
        let cost = len + ENTRY_BYTES;
        let leave_out = || {
            self.waiting.fetch_sub(cost, Ordering::Relaxed);
            self.dropped.fetch_add(packets, Ordering::Relaxed);
        };
        let before = self.waiting.fetch_add(cost, Ordering::Relaxed);
        if before + cost > self.limit {
            return leave_out();
        }
        let entry = make();
        let mut queue = self.lock();
        if queue.closing {
            drop(queue);
            return leave_out();
        }
        queue.entries.push_back(entry);
        let wake = std::mem::take(&mut queue.asleep);
        drop(queue);
        if wake {
            self.work.notify_one();
        }
        let half = self.limit / 2;
        if before < half && before + cost >= half {
            self.hurry.notify_one();
        }
    }

    /// Has everything written that was taken, and waits for it, but not longer than `patience`.
    /// None if it took longer. What comes later is dropped.
    pub fn close(&self, patience: Duration) -> Option<Summary> {
        let until = Instant::now() + patience;
        let mut queue = self.lock();
        queue.closing = true;
        self.work.notify_one();
        self.hurry.notify_one();
        while queue.summary.is_none() {
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.ended.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        queue.summary.clone()
    }

    /// Takes nothing any more, without a lock: for a forked child, where the writer is not.
    pub fn turn_off(&self) {
        self.off.store(true, Ordering::Relaxed);
    }

    /// Whether [`Recorder::turn_off`] was called.
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// The other end of a [`Recorder`].
pub struct Writer<W: Write> {
    recorder: Arc<Recorder>,
    file: BufWriter<W>,
    format: Format,
    /// The packet that is being written.
    packet: Vec<u8>,
    /// Packets.
    written: u64,
    /// Packets that the file did not take.
    lost: u64,
    error: Option<String>,
    /// Packets that were missing when the file was last told, and when that was.
    told: Option<(u64, Instant)>,
}

impl<W: Write> Writer<W> {
    /// Writes until [`Recorder::close`]. Sleeps while there is nothing to do.
    pub fn run(mut self) {
        let mut work = VecDeque::new();
        loop {
            let closing = self.gather(&mut work);
            for entry in work.drain(..) {
                self.write(&entry);
                let cost = entry.cost();
                self.recorder.waiting.fetch_sub(cost, Ordering::Relaxed);
            }
            self.tell_of_losses();
            // What has been taken is in the file when the program is killed.
            let flushed = self.file.flush();
            self.note(flushed);
            if closing {
                break;
            }
        }
        let summary = self.finish();
        let mut queue = self.recorder.lock();
        queue.summary = Some(summary);
        self.recorder.ended.notify_all();
    }

    /// Takes all entries there are; waits for the first, and then a moment for others. Whether
    /// there will be no more.
    fn gather(&self, work: &mut VecDeque<Entry>) -> bool {
        let recorder = &*self.recorder;
        let mut queue = recorder.lock();
        while queue.entries.is_empty() && !queue.closing {
            queue.asleep = true;
            queue = recorder
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        queue.asleep = false;
        if !queue.closing && recorder.waiting.load(Ordering::Relaxed) < recorder.limit / 2 {
            let waited = recorder.hurry.wait_timeout(queue, GATHER);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(work, &mut queue.entries);
        queue.closing
    }

    fn write(&mut self, entry: &Entry) {
        let Body::Piece {
            flow,
            psn,
            kind,
            total,
            offset,
        } = &entry.body
        else {
            self.packet(entry, &entry.bytes);
            return;
        };
        let part = Part {
            flow,
            direction: entry.direction,
            psn: *psn,
            kind,
            total: *total,
            offset: *offset,
            payload: &entry.bytes,
        };
        let mut frame = [0; FRAME_BYTES_MAX];
        let made = part.frames(&mut frame, |frame| self.packet(entry, frame));
        if made.is_err() {
            // A message that its service does not have: a fault of whoever recorded it.
            self.lost += 1;
        }
    }

    /// Writes one packet.
    fn packet(&mut self, entry: &Entry, frame: &[u8]) {
        self.packet.resize(frame.len() + PACKET_OVERHEAD_MAX, 0);
        let used = capture::packet(
            self.format,
            entry.time_ns,
            entry.direction,
            frame,
            &mut self.packet,
        );
        let bytes = used.ok().and_then(|used| self.packet.get(..used));
        let result = match bytes {
            Some(bytes) if self.error.is_none() => self.file.write_all(bytes),
            _ => {
                self.lost += 1;
                return;
            }
        };
        match result {
            Ok(()) => self.written += 1,
            Err(error) => {
                self.lost += 1;
                self.error = Some(error.to_string());
            }
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && self.error.is_none()
        {
            self.error = Some(error.to_string());
        }
    }

    /// Packets that are missing so far.
    fn dropped(&self) -> u64 {
        self.recorder.dropped.load(Ordering::Relaxed) + self.lost
    }

    /// Says in the file what is missing, when there is more than before and not too often, so that
    /// the file of a program that is killed is not taken for complete.
    fn tell_of_losses(&mut self) {
        let dropped = self.dropped();
        let is_news = match self.told {
            None => dropped > 0,
            Some((told, when)) => dropped > told && when.elapsed() >= TELL_EVERY,
        };
        if is_news {
            self.told = Some((dropped, Instant::now()));
            self.write_statistics(dropped);
        }
    }

    /// The classic format has no place for them.
    fn write_statistics(&mut self, dropped: u64) {
        let mut block = [0; 128];
        let total = self.written + dropped;
        if let Ok(used) = capture::statistics(self.format, now_ns(), total, dropped, &mut block) {
            let written = self.file.write_all(block.get(..used).unwrap_or_default());
            self.note(written);
        }
    }

    fn finish(&mut self) -> Summary {
        let dropped = self.dropped();
        self.write_statistics(dropped);
        let flushed = self.file.flush();
        self.note(flushed);
        Summary {
            written: self.written,
            dropped,
            error: self.error.take(),
        }
    }
}
