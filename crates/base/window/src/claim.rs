//! Who holds which slot of a region, and whether he lives.
//!
//! The header page has a line for each slot. Who finds one that nobody holds writes his
//! *generation* there, a random number, and a *beat* that he changes from time to time. A holder
//! whose beat has not changed for [`SILENCE_NS`] as the observer has watched it ([`Watch`]) is dead,
//! and the slot may be claimed.
//!
//! Where caches agree a compare-and-swap decides between two claimants. Where they do not there
//! is none across hosts, so the claim is Fischer's algorithm (Lamport, "A Fast Mutual Exclusion
//! Algorithm", 1987, section 2): write, wait for longer than a write can take to be seen, and
//! look who was last. A host that was paused between looking and writing for longer than that
//! can take a slot from its holder; the holder finds that at its next beat and gives up
//! ([`Hold::beat`]), and all links of it end, because their generations do.

/// A peer or holder is dead when its beat has not changed for this long.
pub const SILENCE_NS: u64 = 3_000_000_000;
/// How often to beat.
pub const BEAT_NS: u64 = 250_000_000;
/// What counts of the time between two looks, at most. Who has looked less often stood still, perhaps with all of its
/// machine, and has not watched anybody meanwhile.
const GAP_NS: u64 = 2 * BEAT_NS;
/// How long a claim waits where no compare-and-swap decides. A write-back to a pool takes
/// microseconds; a virtual processor that is not scheduled takes milliseconds.
pub const SETTLE_NS: u64 = 50_000_000;

/// Words of a slot's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// 0 while nobody holds the slot.
    Generation,
    Beat,
    /// Who holds it, for people: 16 bytes of name.
    NameLow,
    NameHigh,
}

impl Word {
    /// Bytes from the start of the line.
    pub const fn offset(self) -> u64 {
        8 * self as u64
    }
}

/// The lines of all slots.
pub trait Table {
    fn hosts(&self) -> u32;

    /// A word as it is in memory now.
    fn look(&self, slot: u32, word: Word) -> u64;

    /// Writes a word, so that everybody sees it soon.
    fn say(&self, slot: u32, word: Word, value: u64);

    /// Changes the generation if it is `from`; whether it did. None where memory has no such
    /// operation across hosts.
    fn exchange(&self, slot: u32, from: u64, to: u64) -> Option<bool>;

    /// How long a beat has not changed when its holder is dead to this host.
    fn silence_ns(&self) -> u64 {
        SILENCE_NS
    }
}

/// The time for which somebody has watched, who looks again and again, several times in [`SILENCE_NS`].
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    looked_ns: u64,
    watched_ns: u64,
}

impl Watch {
    /// From this time on.
    pub fn new(now_ns: u64) -> Watch {
        Watch {
            looked_ns: now_ns,
            watched_ns: 0,
        }
    }

    /// Looks; how long it was until now.
    pub fn look(&mut self, now_ns: u64) -> u64 {
        self.watched_ns = self.until(now_ns);
        self.looked_ns = self.looked_ns.max(now_ns);
        self.watched_ns
    }

    /// How long it would be if somebody looked now.
    fn until(&self, now_ns: u64) -> u64 {
        let gap_ns = now_ns.saturating_sub(self.looked_ns);
        self.watched_ns.saturating_add(gap_ns.min(GAP_NS))
    }
}

/// Whether somebody's beat changes, by the clock of who looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    last: Option<(u64, Watch)>,
}

impl Pulse {
    /// Notes a beat that was read at this time. Whether there was another one before.
    pub fn feel(&mut self, beat: u64, now_ns: u64) -> bool {
        match &mut self.last {
            Some((last, watch)) if *last == beat => {
                watch.look(now_ns);
                false
            }
            last => last.replace((beat, Watch::new(now_ns))).is_some(),
        }
    }

    /// For how long the beat was watched and has not changed.
    pub fn silence_ns(&self, now_ns: u64) -> u64 {
        self.last.map_or(0, |(_, watch)| watch.until(now_ns))
    }
}

/// What a claim came to.
#[derive(Debug)]
pub enum Claimed {
    Held(Hold),
    /// Nothing to decide before this time.
    Wait {
        until_ns: u64,
    },
}

/// Tries to get a slot.
#[derive(Debug)]
pub struct Claim {
    generation: u64,
    name: [u64; 2],
    only: Option<u32>,
    pulses: Vec<(u64, Pulse)>,
    /// The slot that was written to, and when to look again.
    settling: Option<(u32, u64)>,
}

impl Claim {
    /// `generation` is random, neither 0 nor all ones. `only`: no other slot than this one.
    /// `name` is for people; longer ones are cut.
    pub fn new(generation: u64, name: &str, only: Option<u32>) -> Claim {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let [low, high] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        });
        Claim {
            generation,
            name: [low, high],
            only,
            pulses: Vec::new(),
            settling: None,
        }
    }

    /// Goes on with the claim. Does not end while all slots have holders that live.
    pub fn poll(&mut self, table: &impl Table, now_ns: u64) -> Claimed {
        if let Some((slot, until_ns)) = self.settling {
            if now_ns < until_ns {
                return Claimed::Wait { until_ns };
            }
            self.settling = None;
            if table.look(slot, Word::Generation) == self.generation {
                return self.hold(table, slot);
            }
        }
        self.pulses
            .resize_with(table.hosts() as usize, || (0, Pulse::default()));
        for slot in 0..table.hosts() {
            if self.only.is_some_and(|only| only != slot) {
                continue;
            }
            let holder = table.look(slot, Word::Generation);
            let (seen, pulse) = &mut self.pulses[slot as usize];
            if *seen != holder {
                (*seen, *pulse) = (holder, Pulse::default());
            }
            pulse.feel(table.look(slot, Word::Beat), now_ns);
            if holder != 0 && pulse.silence_ns(now_ns) < table.silence_ns() {
                continue;
            }
            match table.exchange(slot, holder, self.generation) {
                Some(true) => return self.hold(table, slot),
                Some(false) => {}
                None => {
                    table.say(slot, Word::Generation, self.generation);
                    let until_ns = now_ns + SETTLE_NS;
                    self.settling = Some((slot, until_ns));
                    return Claimed::Wait { until_ns };
                }
            }
        }
        Claimed::Wait {
            until_ns: now_ns + BEAT_NS,
        }
    }

    fn hold(&self, table: &impl Table, slot: u32) -> Claimed {
        let mut hold = Hold {
            slot,
            generation: self.generation,
            beat: self.generation,
        };
        table.say(slot, Word::NameLow, self.name[0]);
        table.say(slot, Word::NameHigh, self.name[1]);
        hold.say(table);
        Claimed::Held(hold)
    }
}

/// The slot belongs to somebody else now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// A slot that this host holds.
#[derive(Debug)]
pub struct Hold {
    slot: u32,
    generation: u64,
    beat: u64,
}

impl Hold {
    pub fn slot(&self) -> u32 {
        self.slot
    }

    fn say(&mut self, table: &impl Table) {
        self.beat = self.beat.wrapping_add(1);
        table.say(self.slot, Word::Beat, self.beat);
    }

    /// A sign of life, every [`BEAT_NS`]. Whoever has lost the slot stops writing at once.
    pub fn beat(&mut self, table: &impl Table) -> Result<(), Lost> {
        if table.look(self.slot, Word::Generation) != self.generation {
            return Err(Lost);
        }
        self.say(table);
        Ok(())
    }

    /// Gives the slot back, unless somebody else has it already.
    pub fn release(self, table: &impl Table) {
        if table.exchange(self.slot, self.generation, 0).is_none()
            && table.look(self.slot, Word::Generation) == self.generation
        {
            table.say(self.slot, Word::Generation, 0);
        }
    }
}

#[cfg(test)]
mod tests;
