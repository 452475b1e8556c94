//! A host of a window, of the crate `sluice-window`, for tests to drive by hand.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_sys::mapping::{Access, Mapping};
use sluice_tests::suite::{Verdict, fail};
use sluice_window::claim::{BEAT_NS, Claim, Claimed, Hold, SILENCE_NS};
use sluice_window::ivshmem::Client;
use sluice_window::layout::Pair;
use sluice_window::link::{Ended, Event, Link};
use sluice_window::mailbox::{MESSAGE_BYTES_MAX, Sent};
use sluice_window::region::{Region, RegionView};

use crate::build::SILENCE_S;

const CLAIM_LIMIT: Duration = Duration::from_secs(60);

/// What a peer did.
#[derive(Debug)]
pub enum Heard {
    Up(u32),
    Down(u32, Ended),
    Message(u32, u32, Vec<u8>),
}

pub struct Host {
    /// For the life of the test run: views borrow it.
    region: &'static Region,
    hold: Hold,
    links: BTreeMap<u32, Link>,
    next_generation: u64,
    started: Instant,
    beat_due_ns: u64,
    client: Client,
    /// Messages stay in its mailboxes.
    pub is_deaf: bool,
}

impl Host {
    /// Joins by an ivshmem server's socket.
    pub fn join(socket: &Path) -> Verdict<Host> {
        let client = match Client::connect(socket) {
            Ok(client) => client,
            Err(error) => return fail(error.to_string()),
        };
        let bytes = std::fs::File::from(client.memory().try_clone_to_owned()?)
            .metadata()?
            .len();
        let fd = client.memory().as_raw_fd();
        let mapping = Mapping::shared(fd, bytes as usize, Access::ReadWrite)
            .or_else(|errno| fail(format!("{errno:?}")))?;
        let region = match Region::of(mapping) {
            Ok(region) => Box::leak(Box::new(region)),
            Err(error) => return fail(error.to_string()),
        };
        let generation = random();
        let started = Instant::now();
        let mut claim = Claim::new(generation, "test", None);
        let hold = loop {
            if let Claimed::Held(hold) = claim.poll(region, slow_ns(started)) {
                break hold;
            }
            if started.elapsed() > CLAIM_LIMIT {
                return fail("no slot of the window was free");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut host = Host {
            region,
            hold,
            links: BTreeMap::new(),
            next_generation: generation,
            started,
            beat_due_ns: 0,
            client,
            is_deaf: false,
        };
        for peer in 0..region.header().geometry.hosts() {
            if peer != host.slot() {
                host.begin(peer);
            }
        }
        Ok(host)
    }

    pub fn slot(&self) -> u32 {
        self.hold.slot()
    }

    pub fn region(&self) -> &'static Region {
        self.region
    }

    pub fn view(&self) -> RegionView<'static> {
        self.region.view(self.slot())
    }

    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// A new link, without a word to the peer about the old one: as a host that was restarted.
    pub fn begin(&mut self, peer: u32) {
        self.next_generation = self.next_generation.wrapping_add(1).max(1);
        let pair = Pair::new(self.slot(), peer);
        let link = Link::new(pair, self.next_generation, &self.view());
        self.links.insert(peer, link);
    }

    pub fn leave(&mut self, peer: u32) {
        if let Some(link) = self.links.remove(&peer) {
            link.leave(&self.view());
        }
        self.begin(peer);
    }

    /// What has happened since. To be called often.
    pub fn step(&mut self) -> Verdict<Vec<Heard>> {
        while let Ok(Some(_)) = self.client.change() {}
        let view = self.view();
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let slow_ns = slow_ns(self.started);
        let beat = now_ns >= self.beat_due_ns;
        if beat {
            self.beat_due_ns = now_ns + BEAT_NS;
            if self.hold.beat(self.region).is_err() {
                return fail("the slot was lost");
            }
        }
        let mut heard = Vec::new();
        let mut over = Vec::new();
        for (peer, link) in &mut self.links {
            if beat {
                link.beat(&view);
            }
            while let Some(event) = link.poll(&view, slow_ns) {
                match event {
                    Event::Up { .. } => heard.push(Heard::Up(*peer)),
                    Event::Down(why) => {
                        heard.push(Heard::Down(*peer, why));
                        over.push(*peer);
                    }
                    Event::OtherVersion(version) => {
                        return fail(format!("a peer of version {version}"));
                    }
                }
            }
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            while link.is_up() && !self.is_deaf {
                match link.receiver.receive(&view, &mut buffer) {
                    Ok(Some((kind, bytes))) => {
                        heard.push(Heard::Message(*peer, kind, bytes.to_vec()));
                    }
                    Ok(None) => break,
                    Err(broken) => return fail(format!("peer {peer}: {broken}")),
                }
            }
        }
        for peer in over {
            self.begin(peer);
        }
        Ok(heard)
    }

    pub fn is_up(&self, peer: u32) -> bool {
        self.links.get(&peer).is_some_and(Link::is_up)
    }

    pub fn peers(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    /// False: there is no room, or no link.
    pub fn send(&mut self, peer: u32, kind: u32, message: &[u8]) -> Verdict<bool> {
        let view = self.view();
        match self.links.get_mut(&peer) {
            Some(link) if link.is_up() => match link.sender.send(&view, kind, message) {
                Ok(sent) => Ok(sent == Sent::Yes),
                Err(broken) => fail(format!("peer {peer}: {broken}")),
            },
            _ => Ok(false),
        }
    }
}

/// A clock by which others are dead when they are to the modules.
fn slow_ns(started: Instant) -> u64 {
    let real_ns = started.elapsed().as_nanos() as u64;
    real_ns / SILENCE_S * (SILENCE_NS / 1_000_000_000)
}

/// A word that is neither 0 nor all ones.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(1) >> 1 | 1
}
