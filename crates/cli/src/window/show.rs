//! `sluice window show`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_window::claim::{BEAT_NS, Table, Word};
use sluice_window::region::Region;

use super::{describe, failed};
use crate::error::Failure;
use crate::error::Outcome;
use crate::terminal::harmless;
use crate::terminal::print;

/// A holder that lives beats several times in this span.
const WATCHED: Duration = Duration::from_nanos(3 * BEAT_NS);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Goes up when a field changes its meaning or goes away.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
struct Document {
    format: u32,
    path: String,
    kind: &'static str,
    id: String,
    bytes: u64,
    slot_bytes: u64,
    slots: Vec<Slot>,
}

#[derive(Debug, Serialize)]
struct Slot {
    number: u32,
    /// `free`, `held`, or `silent`: held by somebody who gave no sign of life while it was
    /// watched.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

pub fn run(path: &Path, json: bool) -> Outcome {
    let region = Region::open(path).map_err(|error| failed(&error))?;
    let slots = watch(&region);
    let text = if json {
        let header = region.header();
        let document = Document {
            format: FORMAT,
            path: path.display().to_string(),
            kind: header.kind.name(),
            id: format!("{:016x}{:016x}", header.id[0], header.id[1]),
            bytes: header.geometry.region_bytes(),
            slot_bytes: header.geometry.slot_bytes(),
            slots,
        };
        serde_json::to_string_pretty(&document).map_err(|error| {
            Failure::new(
                format!("cannot write the window as JSON: {error}"),
                "please report this",
            )
        })? + "\n"
    } else {
        let mut text = format!("{}: {}\n", path.display(), describe(&region));
        for slot in &slots {
            let name = slot.name.as_deref().unwrap_or("");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  slot {}: {} {}", slot.number, slot.state, name);
        }
        text.lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    };
    print(&text)?;
    Ok(0)
}

/// Looks at the slots until each holder has beaten, or long enough.
fn watch(region: &Region) -> Vec<Slot> {
    let generation = |slot| region.look(slot, Word::Generation);
    let beat = |slot| region.look(slot, Word::Beat);
    let hosts = 0..region.hosts();
    let first: Vec<u64> = hosts.clone().map(beat).collect();
    let is_quiet = |slot: u32| generation(slot) != 0 && beat(slot) == first[slot as usize];
    let begun = Instant::now();
    while hosts.clone().any(is_quiet) && begun.elapsed() < WATCHED {
        std::thread::sleep(LOOK_AGAIN);
    }
    hosts
        .map(|slot| Slot {
            number: slot,
            state: match generation(slot) {
                0 => "free",
                _ if is_quiet(slot) => "silent",
                _ => "held",
            },
            name: (generation(slot) != 0).then(|| name(region, slot)),
        })
        .collect()
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
