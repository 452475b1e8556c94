//! Memory that hosts share: this host's slot in it, and the links with the slots of others.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::memfd::{self, FileStat, SEAL_SHRINK};
use sluice_sys::unix::Fd;
use sluice_window::Kind;
use sluice_window::claim::{BEAT_NS, Claim, Claimed, Hold};
use sluice_window::layout::Pair;
use sluice_window::ledger::Ledger;
use sluice_window::link::{Event, Link, generation};
use sluice_window::region::Region;

use super::leaving;
use super::pieces::{Place, WindowId};
use super::server::Origin;
use crate::peer::PeerName;

/// Memory of a server at most: what sluiced keeps of a slot grows with it.
const SERVED_BYTES_MAX: u64 = 64 << 30;

/// Memory that was got.
#[derive(Debug)]
pub struct Shared {
    pub memory: Fd,
    /// Which file it is.
    stat: FileStat,
    pub region: Region,
    pub claim: Option<Claim>,
    pub held: Option<Held>,
    /// Nothing to do before.
    pub due: Instant,
}

#[derive(Debug)]
pub struct Held {
    pub hold: Hold,
    pub ledger: Ledger,
    /// By slot.
    pub links: HashMap<u32, SlotLink>,
}

/// The link with whoever has a slot.
#[derive(Debug)]
pub struct SlotLink {
    pub link: Link,
    /// Who has proven that the slot is its own, since the link is up.
    pub holder: Option<PeerName>,
}

/// What has become of a window.
#[derive(Debug, Default)]
pub struct Changes {
    /// This host has another slot.
    pub is_new: bool,
    /// Slots with which the link has come up.
    pub met: Vec<(WindowId, u32)>,
}

impl Shared {
    /// The window that lies in this memory. `name` is this host's, for people.
    ///
    /// # Errors
    /// Why no connection can lie there.
    pub fn open(memory: Fd, origin: Origin, name: &str) -> Result<Shared, String> {
        // Programs map it: nobody may be able to make it shorter under them.
        let checked = match origin {
            // Of the descriptor of a stranger nothing is asked that could have this process wait.
            Origin::Server => memfd::check_foreign(memory.raw(), 1, SEAL_SHRINK),
            Origin::Path => memfd::check_lasting(memory.raw(), 1),
        };
        let stat = checked.map_err(|_| {
            "its memory is neither sealed nor a PCI device's: use `sluice window serve`, in a guest the \
             device's resource2"
                .to_owned()
        })?;
        if origin == Origin::Server && stat.bytes > SERVED_BYTES_MAX {
            let max = SERVED_BYTES_MAX >> 30;
            return Err(format!(
                "its memory has {} bytes, and {max}G are the most that can be served",
                stat.bytes
            ));
        }
        // As it is for each program: without, nobody knows when a piece is free again.
        leaving::descriptor(memory.raw(), &(0..stat.bytes)).map_err(|error| {
            format!("its memory cannot be opened again (/proc has to be mounted): {error}")
        })?;
        let bytes = usize::try_from(stat.bytes).map_err(|error| error.to_string())?;
        let mapping = Mapping::shared(memory.raw(), bytes, Access::ReadWrite)
            .map_err(|error| error.to_string())?;
        let region = Region::of(mapping).map_err(|error| error.to_string())?;
        if region.header().kind != Kind::Coherent {
            return Err("its caches do not agree, so no connection can lie in it".to_owned());
        }
        Ok(Shared {
            memory,
            stat,
            region,
            claim: Some(claim(name).ok_or("no random numbers")?),
            held: None,
            due: Instant::now(),
        })
    }

    pub fn id(&self) -> WindowId {
        self.region.header().id
    }

    /// Whether this is that file's memory.
    pub fn is_file(&self, memory: &Fd) -> bool {
        let stat = memfd::stat(memory.raw());
        stat.is_ok_and(|it| (it.device, it.inode) == (self.stat.device, self.stat.inode))
    }

    /// Where bytes of a slot are in the memory.
    pub fn range(&self, slot: u32, at: u64, bytes: u64) -> Range<u64> {
        let start = self.region.header().geometry.slot_at(slot) + at;
        start..start + bytes
    }

    /// Slots of other hosts that are there, and whose they are.
    pub fn holders(&self) -> impl Iterator<Item = (u32, &PeerName)> {
        let links = self.held.iter().flat_map(|held| &held.links);
        let up = links.filter(|(_, known)| known.link.is_up());
        up.filter_map(|(slot, known)| Some((*slot, known.holder.as_ref()?)))
    }

    /// Whether a peer is there.
    pub fn has(&self, name: &str) -> bool {
        self.holders().any(|(_, holder)| **holder == *name)
    }

    /// The slots of this host and of a peer that is there, in the memory of the window with this place.
    pub fn place(&self, window: usize, name: &str) -> Option<Place> {
        let mut holders = self.holders();
        let (slot, _) = holders.find(|(_, holder)| ***holder == *name)?;
        Some(Place {
            window,
            own: self.held.as_ref()?.hold.slot(),
            slot,
            id: self.id(),
        })
    }

    /// Has a link with this slot.
    pub fn call(&mut self, slot: u32) {
        let hosts = self.region.header().geometry.hosts();
        let Some(held) = &mut self.held else {
            return;
        };
        let me = held.hold.slot();
        let is_other = slot < hosts && slot != me;
        if !is_other || held.links.contains_key(&slot) {
            return;
        }
        if let Some(link) = call(&self.region, me, slot) {
            let holder = None;
            held.links.insert(slot, SlotLink { link, holder });
            self.due = Instant::now();
        }
    }

    /// Gives the slot back, and says so to those who have a link with it.
    pub fn leave(self) {
        let Some(mut held) = self.held else {
            return;
        };
        if held.hold.beat(&self.region).is_err() {
            return;
        }
        let view = self.region.view(held.hold.slot());
        for known in held.links.into_values() {
            known.link.leave(&view);
        }
        held.hold.release(&self.region);
    }

    /// Claims, beats, and looks after peers, where that is due.
    pub fn turn(
        &mut self,
        now: Instant,
        now_ns: u64,
        (path, name): (&Path, &str),
        changes: &mut Changes,
    ) {
        if self.due > now {
            return;
        }
        self.due = now + Duration::from_nanos(BEAT_NS);
        let path = path.display();
        if let Some(claim) = &mut self.claim {
            match claim.poll(&self.region, now_ns) {
                Claimed::Held(hold) => {
                    let slot = hold.slot();
                    let ledger = Ledger::open(&self.region.view(slot), self.region.header(), slot);
                    tracing::info!("slot {slot} of the window {path}");
                    self.claim = None;
                    self.held = Some(Held {
                        hold,
                        ledger,
                        links: HashMap::new(),
                    });
                    changes.is_new = true;
                }
                Claimed::Wait { until_ns } => {
                    let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    self.due = now + wait.max(Duration::from_millis(1));
                }
            }
            return;
        }
        let id = self.id();
        let Some(held) = &mut self.held else {
            return;
        };
        if held.hold.beat(&self.region).is_err() {
            // Stopped for too long. What was lent stays so in the ledger that the next holder finds.
            tracing::warn!("another host has this one's slot of the window {path}");
            self.held = None;
            self.claim = claim(name);
            self.due = now;
            return;
        }
        let me = held.hold.slot();
        let view = self.region.view(me);
        for (slot, known) in &mut held.links {
            known.link.beat(&view);
            match known.link.poll(&view, now_ns) {
                Some(Event::Up { .. }) => changes.met.push((id, *slot)),
                Some(Event::OtherVersion(version)) => {
                    tracing::warn!("slot {slot} of the window {path} is used by version {version}");
                }
                Some(Event::Down(why)) => {
                    if let Some(name) = known.holder.take() {
                        tracing::info!(peer = %name, reason = %why, "{name}, window {path}: {why}");
                    }
                    if let Some(link) = call(&self.region, me, *slot) {
                        known.link = link;
                    }
                }
                None => {}
            }
        }
    }
}

fn claim(name: &str) -> Option<Claim> {
    Some(Claim::new(generation().ok()?, name, None))
}

fn call(region: &Region, me: u32, slot: u32) -> Option<Link> {
    let view = region.view(me);
    Some(Link::new(Pair::new(me, slot), generation().ok()?, &view))
}
