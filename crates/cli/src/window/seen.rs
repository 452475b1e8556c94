//! What a window shows to somebody who only looks.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_sys::mapping::{Access, Mapping};
use sluice_sys::{memfd, ofd_lock};
use sluice_window::claim::{BEAT_NS, Pulse, Table, Word};
use sluice_window::ivshmem::{Change, Client};
use sluice_window::ledger::Ledger;
use sluice_window::region::Region;

use super::{describe, failed};
use crate::error::Failure;
use crate::terminal::harmless;
use crate::units;

/// A holder that lives beats several times in this span.
const WATCHED: Duration = Duration::from_nanos(3 * BEAT_NS);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a server may take to name its peers' doorbells.
const BELLS: Duration = Duration::from_secs(10);
/// Pieces of one slot that are counted.
const PIECES_MAX: usize = 4096;

/// One window.
#[derive(Debug, Serialize)]
pub struct Seen {
    pub path: String,
    pub kind: &'static str,
    pub id: String,
    pub bytes: u64,
    pub slot_bytes: u64,
    /// Served: doorbells of all peers, but for this program's own. In a file: pipes of verbs programs.
    pub doorbells: usize,
    /// Who is connected to the server, but for this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<usize>,
    pub slots: Vec<Slot>,
    /// For people.
    #[serde(skip)]
    description: String,
}

#[derive(Debug, Serialize)]
pub struct Slot {
    number: u32,
    /// `free`, `held`, or `silent`: held by somebody who gave no sign of life while it was
    /// watched.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Since the last sign of life, milliseconds: of a silent holder at least so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    beat_age_ms: Option<u64>,
    /// What the slot's holder has written down as lent to programs, for direct lanes. A killed
    /// holder's stays so.
    lent_bytes: u64,
    /// Pieces of it that processes have mapped. Served windows alone have any.
    pieces: usize,
}

/// The memory, and how it was got.
pub struct Memory {
    pub region: Region,
    client: Option<Client>,
}

/// Looks at the window in a file or device, or at the socket of `sluice window serve`, for up to
/// three quarters of a second.
///
/// # Errors
/// There is no window, or this user may not open it.
pub fn look(path: &Path) -> Result<Seen, Failure> {
    let mut memory = open(path)?;
    let (doorbells, peers) = match &mut memory.client {
        Some(client) => bells_of_peers(client),
        None => (pipes(path, memory.region.hosts()), None),
    };
    let header = memory.region.header();
    Ok(Seen {
        path: path.display().to_string(),
        kind: header.kind.name(),
        id: format!("{:016x}{:016x}", header.id[0], header.id[1]),
        bytes: header.geometry.region_bytes(),
        slot_bytes: header.geometry.slot_bytes(),
        doorbells,
        peers,
        description: describe(&memory.region),
        slots: watch(&memory),
    })
}

impl Seen {
    /// A line for the window, and one for each slot.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}", harmless(&self.path), self.description);
        let bells = self.doorbells;
        // Writing to a String cannot fail.
        let _ = match self.peers {
            Some(peers) => writeln!(text, ", {peers} peers with {bells} doorbells"),
            None => writeln!(text, ", {bells} doorbells"),
        };
        for slot in &self.slots {
            let _ = write!(text, "  slot {}: {}", slot.number, slot.state);
            if let Some(name) = slot.name.as_deref().filter(|name| !name.is_empty()) {
                let _ = write!(text, " {name}");
            }
            if let Some(age) = slot.beat_age_ms {
                let more = if slot.state == "silent" {
                    "more than "
                } else {
                    ""
                };
                let _ = write!(text, ", beat {more}{age} ms ago");
            }
            if slot.lent_bytes > 0 || slot.pieces > 0 {
                let lent = units::bytes(slot.lent_bytes);
                let _ = write!(text, ", {lent} lent, {} pieces mapped", slot.pieces);
            }
            text.push('\n');
        }
        text
    }
}

/// The memory of a file or device, or that of the socket of `sluice window serve`.
///
/// # Errors
/// There is no window, or this user may not open it.
pub fn open(path: &Path) -> Result<Memory, Failure> {
    let is_socket = fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if !is_socket {
        let region = Region::open(path).map_err(|error| failed(&error))?;
        let client = None;
        return Ok(Memory { region, client });
    }
    let wrong = |error: String| {
        Failure::new(
            format!("{}: {error}", path.display()),
            "see sluice-window(1)",
        )
    };
    let client = Client::connect(path)
        .map_err(|error| Failure::new(error.to_string(), "start 'sluice window serve' there"))?;
    let fd = client.memory().as_raw_fd();
    let stat = memfd::check_foreign(fd, 1, memfd::SEAL_SHRINK).map_err(|_| {
        wrong("its memory is not sealed: it is not of 'sluice window serve'".into())
    })?;
    let bytes = usize::try_from(stat.bytes).map_err(|error| wrong(error.to_string()))?;
    let mapping =
        Mapping::shared(fd, bytes, Access::ReadWrite).map_err(|error| wrong(error.to_string()))?;
    let region = Region::of(mapping).map_err(|error| wrong(error.to_string()))?;
    let client = Some(client);
    Ok(Memory { region, client })
}

/// Doorbells and peers. The server names others' first, and this program's own last.
fn bells_of_peers(client: &mut Client) -> (usize, Option<usize>) {
    let own = client.number();
    let mut peers: Vec<u16> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < BELLS {
        match client.change() {
            Ok(Some(Change::Bell(peer))) if peer == own => break,
            Ok(Some(Change::Bell(peer))) => peers.push(peer),
            Ok(Some(Change::Gone(gone))) => peers.retain(|peer| *peer != gone),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => break,
        }
    }
    let bells = peers.len();
    peers.sort_unstable();
    peers.dedup();
    (bells, Some(peers.len()))
}

/// Named pipes of verbs programs (`sluice_transport_window`).
fn pipes(path: &Path, hosts: u32) -> usize {
    let is_there = |slot: &u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".bell.{slot}"));
        let kind: io::Result<fs::Metadata> = fs::symlink_metadata(PathBuf::from(name));
        kind.is_ok_and(|it| it.file_type().is_fifo())
    };
    (0..hosts).filter(is_there).count()
}

/// Looks at the slots until each holder has beaten, or long enough.
fn watch(memory: &Memory) -> Vec<Slot> {
    let region = &memory.region;
    let generation = |slot| region.look(slot, Word::Generation);
    let beat = |slot| region.look(slot, Word::Beat);
    let hosts = 0..region.hosts();
    let first: Vec<u64> = hosts.clone().map(beat).collect();
    let begun = Instant::now();
    let now_ns = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut pulses: Vec<Pulse> = hosts.clone().map(|_| Pulse::default()).collect();
    let mut has_beaten = vec![false; first.len()];
    loop {
        for (slot, pulse) in hosts.clone().zip(&mut pulses) {
            let word = beat(slot);
            pulse.feel(word, now_ns());
            has_beaten[slot as usize] |= word != first[slot as usize];
        }
        let is_quiet = |slot: u32| generation(slot) != 0 && !has_beaten[slot as usize];
        if !hosts.clone().any(is_quiet) || begun.elapsed() >= WATCHED {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let slots = hosts.map(|slot| {
        let is_taken = generation(slot) != 0;
        let age_ns = pulses[slot as usize].silence_ns(now_ns());
        Slot {
            number: slot,
            state: match (is_taken, has_beaten[slot as usize]) {
                (false, _) => "free",
                (true, false) => "silent",
                (true, true) => "held",
            },
            name: is_taken.then(|| name(region, slot)),
            beat_age_ms: is_taken.then_some(age_ns / 1_000_000),
            lent_bytes: Ledger::lent_bytes(&region.view(slot), region.header()),
            pieces: pieces(memory, slot),
        }
    });
    slots.collect()
}

/// Each piece for a program is locked as long as a process has it mapped.
fn pieces(memory: &Memory, slot: u32) -> usize {
    let Some(client) = &memory.client else {
        return 0;
    };
    let geometry = &memory.region.header().geometry;
    let start = geometry.slot_at(slot);
    let range = start..start + geometry.slot_bytes();
    let all = ofd_lock::all_held(client.memory().as_raw_fd(), range, PIECES_MAX);
    all.map_or(0, |all| all.len())
}

fn name(region: &Region, slot: u32) -> String {
    let words = [Word::NameLow, Word::NameHigh].map(|word| region.look(slot, word));
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    // Whoever shares the window may have written it.
    harmless(&String::from_utf8_lossy(&bytes))
}
