//! Finding out during the handshake whether the other end can do lanes.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use sluice_sys::bpf::{AttachType, Btf, Code, Kind, Link, Map, ProgramKind, RingBuffer};
use sluice_sys::capability::{Capability, missing};
use sluice_sys::errno::Errno;
use sluice_sys::process::random;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::event::{Event, Peer, VERDICT_BYTES, Verdict};
use crate::load::{self, Part};
use crate::rules::{NETWORK_KEY_BYTES, NETWORKS_MAX, PortMap, Rules};

/// What clang made of `bpf/finder.bpf.c`.
const FIND_PEER: Code = include!(concat!(env!("OUT_DIR"), "/find_peer.rs"));
const ENROLL: Code = include!(concat!(env!("OUT_DIR"), "/enroll.rs"));

/// Bytes of `struct settings` of finder.bpf.c.
const SETTINGS_BYTES: usize = 40;
/// More connections than this cannot be asked for: a gigabyte of kernel memory.
const CONNECTIONS_MAX: u32 = 1 << 23;
const EVENTS_BYTES_MAX: u32 = 1 << 28;
/// What an event takes in the ring.
const EVENT_ROOM_BYTES: u32 = 72;

/// What the program counts, in the order of finder.bpf.c.
enum Counter {
    Offered,
    Answered,
    NoRoom,
    Lost,
    Enrolled,
    /// The first of one for each [`Peer`].
    Verdicts,
}
const COUNTERS: u32 = Counter::Verdicts as u32 + Peer::ALL.len() as u32;

/// `STATE_OFFSET` of finder.bpf.c.
const STATE_BITS: u32 = 18 * 8;

/// Sizes, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinderOptions {
    /// How many connections can be known at once, 1 to 8388608; of more, those that were not asked
    /// about for longest are forgotten. 130 bytes of kernel memory each, taken at once.
    pub connections_max: u32,
    /// Room for events, a power of two, at least a page and at most 256 MiB. An event takes 72
    /// bytes.
    pub events_bytes: u32,
    /// So many events wake a thread that sleeps in epoll; fewer wait until it looks
    /// ([`Finder::read`]) by itself. To be woken for each of them costs more than all else, some
    /// 20 µs for each connection. At most half of those for which there is room.
    pub wake_after_events: u32,
    /// Events tell of connections whose SYN was not heard ([`Peer::Unheard`]) and of nothing else,
    /// not of their end either: for a reader that asks for verdicts.
    pub only_unheard: bool,
    /// The key by which answers are made. Ends find each other if they have the same. It keeps
    /// foreign clusters apart; it is no proof of who the peer is, which daemons give each other.
    pub key: [u8; 16],
}

impl Default for FinderOptions {
    /// 65536 connections, 256 KiB for events, each of which wakes, and a key that everybody knows.
    fn default() -> Self {
        Self {
            connections_max: 65536,
            events_bytes: 256 * 1024,
            wake_after_events: 1,
            only_unheard: false,
            key: *b"sluice option v1",
        }
    }
}

/// What the program has done. On a busy host the numbers are of slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinderCounters {
    /// SYNs with our option.
    pub offered: u64,
    /// SYN-ACKs with our option.
    pub answered: u64,
    /// SYNs and SYN-ACKs that went without, as other options left no room for it.
    pub no_room: u64,
    /// Events for which there was no room. [`Finder::for_each`] tells what is known.
    pub lost: u64,
    /// Listeners that [`Finder::enroll_listeners`] has found.
    pub enrolled: u64,
    /// Connections, by what their handshakes have shown, in the order of [`Peer::ALL`].
    pub verdicts: [u64; Peer::ALL.len()],
}

/// The attached program. It is detached when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct Finder {
    settings: Map,
    networks: Map,
    ports: PortMap,
    verdicts: Map,
    counters: Map,
    events: RingBuffer,
    /// Ours alone, and that of the options.
    keys: [[u8; 16]; 2],
    wake_bytes: u32,
    only_unheard: bool,
    /// What the maps hold.
    trie: BTreeMap<[u8; NETWORK_KEY_BYTES], u8>,
    /// First of all, the program is detached.
    _link: Option<Link>,
}

impl Finder {
    /// Attaches the program to a cgroup, for connections that the rules choose. Connections of
    /// before are not known. A listener answers if listen() was called since; of those of before,
    /// the ones that an earlier [`Finder`] knew answer as well, and those of
    /// [`Finder::enroll_listeners`].
    pub fn attach(cgroup: &Cgroup, options: &FinderOptions, rules: &Rules) -> Result<Self, Error> {
        if !(1..=CONNECTIONS_MAX).contains(&options.connections_max) {
            return Err(Error::Invalid {
                why: "connections_max must be from 1 to 8388608",
            });
        }
        if !options.events_bytes.is_power_of_two()
            || !(4096..=EVENTS_BYTES_MAX).contains(&options.events_bytes)
        {
            return Err(Error::Invalid {
                why: "events_bytes must be a power of two from the size of a page to 256 MiB",
            });
        }
        let wake_bytes = match options.wake_after_events {
            0 | 1 => 0,
            events => events.saturating_mul(EVENT_ROOM_BYTES),
        };
        if wake_bytes > options.events_bytes / 2 {
            return Err(Error::Invalid {
                why: "wake_after_events must be at most half of the events for which there is room",
            });
        }
        let own = random().map_err(Error::system("getrandom"))?;
        let mut nonces = [0; 16];
        nonces[..8].copy_from_slice(&own[0].to_ne_bytes());
        nonces[8..].copy_from_slice(&own[1].to_ne_bytes());
        let offers = load::map(
            "sluice_offers",
            Kind::LruHash,
            8,
            8,
            options.connections_max,
        )?;
        let mut finder = Self {
            settings: load::map("sluice_settings", Kind::Array, 4, SETTINGS_BYTES, 1)?,
            networks: load::map(
                "sluice_networks",
                Kind::LongestPrefix,
                NETWORK_KEY_BYTES,
                1,
                // One more is the root of IPv4.
                NETWORKS_MAX + 1,
            )?,
            ports: PortMap::new()?,
            verdicts: load::map(
                "sluice_verdicts",
                Kind::LruHash,
                8,
                VERDICT_BYTES,
                options.connections_max,
            )?,
            counters: load::counters(COUNTERS)?,
            events: load::ring("sluice_events", options.events_bytes)?,
            keys: [nonces, options.key],
            wake_bytes,
            only_unheard: options.only_unheard,
            trie: BTreeMap::new(),
            _link: None,
        };
        finder.set_rules(rules)?;
        let part = Part {
            name: "find_peer",
            code: FIND_PEER,
            kind: ProgramKind::SocketOperations,
            attach_type: AttachType::SocketOperations,
        };
        let maps = [
            ("settings", &finder.settings),
            ("networks", &finder.networks),
            ("ports", finder.ports.map()),
            ("offers", &offers),
            ("verdicts", &finder.verdicts),
            ("events", finder.events.map()),
            ("counters", &finder.counters),
        ];
        let link = load::attach(cgroup, &part, &maps)?;
        finder._link = Some(link);
        Ok(finder)
    }

    /// Has listeners answer that are older than the program, those of the calling thread's network
    /// namespace (setns(2)). Takes CAP_PERFMON, Linux 6.12 and its types (`/sys/kernel/btf`). It
    /// goes through all TCP sockets of the namespace, and marks listeners of other cgroups too,
    /// which makes no difference to them.
    pub fn enroll_listeners(&self) -> Result<(), Error> {
        const LACKS: Error = Error::Kernel {
            lacks: "its types (CONFIG_DEBUG_INFO_BTF) or the iterator over TCP sockets (Linux 5.8)",
        };
        let types = Btf::of_kernel().map_err(|_| LACKS)?;
        let target = types.function("bpf_iter_tcp").map_err(|_| LACKS)?;
        let state = types.member(&["sock_common", "skc_state"]);
        if state.map(|place| place.bits) != Ok(STATE_BITS) {
            return Err(Error::Kernel {
                lacks: "the state of a socket where all of Linux up to 6.18 have it",
            });
        }
        let part = Part {
            name: "enroll",
            code: ENROLL,
            kind: ProgramKind::Tracing,
            attach_type: AttachType::Iterator,
        };
        let program = load::load(&part, target, &[("counters", &self.counters)]).map_err(
            |error| match error {
                Error::NotPermitted { what, .. } => Error::NotPermitted {
                    what,
                    missing: missing(&[Capability::Bpf, Capability::NetAdmin, Capability::Perfmon]),
                },
                error => error,
            },
        )?;
        program
            .iterate()
            .map_err(Error::system("read(an iterator over TCP sockets)"))
    }

    /// Other rules, for connections from now on. What the old and the new ones agree upon holds
    /// all the time. On an error some of the changes are made; calling it again goes on.
    pub fn set_rules(&mut self, rules: &Rules) -> Result<(), Error> {
        if rules.networks.len() > NETWORKS_MAX as usize {
            return Err(Error::Full {
                what: "networks",
                limit: NETWORKS_MAX,
            });
        }
        let update = Error::system("bpf(BPF_MAP_UPDATE_ELEM), the rules");
        let wanted = rules.trie();
        let gone = |key: &&[u8; NETWORK_KEY_BYTES]| !wanted.contains_key(*key);
        let gone: Vec<_> = self.trie.keys().filter(gone).copied().collect();
        for key in gone {
            match self.networks.remove(&key) {
                Ok(()) | Err(Errno(libc::ENOENT)) => self.trie.remove(&key),
                Err(errno) => return Err(Error::system("bpf(BPF_MAP_DELETE_ELEM)")(errno)),
            };
        }
        for (key, value) in wanted {
            if self.trie.get(&key) != Some(&value) {
                self.networks.set(&key, &[value]).map_err(&update)?;
                self.trie.insert(key, value);
            }
        }
        self.ports.set(&rules.ports)?;
        self.write_settings(rules)
    }

    /// Another key and other rules, for connections from now on; see [`Finder::set_rules`].
    pub fn set_key(&mut self, key: [u8; 16], rules: &Rules) -> Result<(), Error> {
        self.keys[1] = key;
        self.set_rules(rules)
    }

    fn write_settings(&self, rules: &Rules) -> Result<(), Error> {
        let mut settings = [0; SETTINGS_BYTES];
        for (index, half) in self.keys.as_flattened().chunks_exact(8).enumerate() {
            // A key is bytes; the program reads it as numbers, little-endian.
            let mut word = [0; 8];
            word.copy_from_slice(half);
            let word = u64::from_le_bytes(word).to_ne_bytes();
            settings[index * 8..index * 8 + 8].copy_from_slice(&word);
        }
        settings[32] = u8::from(rules.enabled);
        settings[33] = u8::from(rules.other_networks);
        settings[34] = u8::from(self.only_unheard);
        settings[36..].copy_from_slice(&self.wake_bytes.to_ne_bytes());
        let update = Error::system("bpf(BPF_MAP_UPDATE_ELEM), the settings");
        self.settings.set(&[0; 4], &settings).map_err(update)
    }

    /// What is known of a connection by its socket's cookie ([`sluice_sys::tcp::cookie`]). None:
    /// its handshake is not over, it is closed, the rules do not choose it, or it is older than
    /// the program.
    pub fn verdict(&self, cookie: u64) -> Result<Option<Verdict>, Error> {
        let mut value = [0; VERDICT_BYTES];
        let found = self
            .verdicts
            .get(&cookie.to_ne_bytes(), &mut value)
            .map_err(Error::system("bpf(BPF_MAP_LOOKUP_ELEM)"))?;
        Ok(found.then(|| Verdict::parse(&value)).flatten())
    }

    /// All that is known, by cookie, in no order. Connections that come and go meanwhile may be
    /// missing, or come twice. For use after events were lost: it takes two system calls for each.
    pub fn for_each(&self, take: &mut dyn FnMut(u64, Verdict)) -> Result<(), Error> {
        let mut key: Option<[u8; 8]> = None;
        let mut next = [0; 8];
        // The kernel begins anew behind a key that is gone.
        for _ in 0..2 * CONNECTIONS_MAX {
            let more = self
                .verdicts
                .next_key(key.as_ref().map(<[u8; 8]>::as_slice), &mut next)
                .map_err(Error::system("bpf(BPF_MAP_GET_NEXT_KEY)"))?;
            if !more {
                break;
            }
            let cookie = u64::from_ne_bytes(next);
            if let Some(verdict) = self.verdict(cookie)? {
                take(cookie, verdict);
            }
            key = Some(next);
        }
        Ok(())
    }

    /// A descriptor for epoll, which is readable when there are
    /// [`FinderOptions::wake_after_events`] events.
    /// poll(2) looks before it sleeps, and finds it readable when there are any.
    pub fn raw(&self) -> RawFd {
        self.events.map().raw()
    }

    /// Gives all events that have come to `take`, in their order, and says how many. Does not
    /// block.
    pub fn read(&mut self, take: &mut dyn FnMut(Event)) -> usize {
        let mut count = 0;
        self.events.read(&mut |record| {
            if let Some(event) = Event::parse(record) {
                take(event);
                count += 1;
            }
        });
        count
    }

    /// What the program has done since it was attached.
    pub fn counters(&self) -> Result<FinderCounters, Error> {
        let sum = |counter: Counter| load::counter(&self.counters, counter as u32);
        let mut verdicts = [0; Peer::ALL.len()];
        for (at, count) in (Counter::Verdicts as u32..).zip(&mut verdicts) {
            *count = load::counter(&self.counters, at)?;
        }
        Ok(FinderCounters {
            verdicts,
            offered: sum(Counter::Offered)?,
            answered: sum(Counter::Answered)?,
            no_room: sum(Counter::NoRoom)?,
            lost: sum(Counter::Lost)?,
            enrolled: sum(Counter::Enrolled)?,
        })
    }
}
