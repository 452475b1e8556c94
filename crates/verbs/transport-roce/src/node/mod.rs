//! One transport's share of the process: its shards and what they have in common, its completion
//! queues, and the interfaces that it serves.

mod leave;
pub mod membership;
pub mod report;

use std::sync::{Arc, Mutex};

use sluice_packet::{Path, Port};
use sluice_rendezvous::{Names, Rendezvous};
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::ClosedInChildren;
use sluice_transport::notice::Notices;
use sluice_transport::worker::{Control, token};
use sluice_verbs::transport::QpParams;
use sluice_verbs::{Aftermath, Result};
use sluice_xdp::XdpPort;

use crate::completions::{Completions, Sources};
use crate::counters::Seen;
use crate::gsi::Gsi;
use crate::locks::{Rank, lock};
use crate::multicast::Groups;
use crate::neighbours::forward::{Forward, Message};
use crate::network::Network;
use crate::network::path::{UDP_PORT, Way};
use crate::ports::tap::Below;
use crate::queue_pair::part::Part;
use crate::queue_pair::table::QueuePairs;
use crate::shard::common::Common;
use crate::shard::gate::Gate;
use crate::shard_set::SHARDS_MAX;
use crate::shards::Shards;
use crate::watched::{LISTENER, NETWORK, UDP, XDP};

/// Blocks of queue pair numbers of one process.
const BLOCKS_MAX: usize = 256;

/// One transport's share of the process.
pub struct Node {
    /// Descriptors of ports, which would keep the address taken in a child of fork. In front of
    /// the shards, which close them.
    private: Mutex<Vec<ClosedInChildren>>,
    pub shards: Shards,
    pub completions: Completions,
    /// Held by whoever gives the shards more ports, so that all have them in one order. In front
    /// of the shards' locks.
    serving: Mutex<()>,
    /// Interfaces that datagrams were sent by, to be served.
    wanted: Mutex<Vec<u32>>,
    /// What queue pairs have seen that are gone.
    gone: Mutex<Seen>,
    pub control: Control,
    notices: Notices,
}

/// What a node is made of, besides what every node has.
pub struct Parts {
    pub rendezvous: Rendezvous,
    pub network: Network,
    /// The ports of each shard, at least of one.
    pub shards: Vec<Vec<Box<dyn Port>>>,
}

impl Node {
    pub fn new(parts: Parts) -> core::result::Result<Arc<Self>, Errno> {
        if !(1..=SHARDS_MAX).contains(&parts.shards.len()) {
            return Err(Errno::INVAL);
        }
        let mut private: Vec<_> = parts.network.descriptor().into_iter().collect();
        let mut gates = Vec::new();
        for (number, ports) in parts.shards.iter().enumerate() {
            let descriptors: Vec<_> = ports
                .iter()
                .flat_map(|port| port.facts().descriptors)
                .collect();
            let gate = Gate::new(number)?;
            for descriptor in &descriptors {
                gate.sleeper.add_port(*descriptor, UDP)?;
            }
            private.extend(descriptors);
            gates.push(Arc::new(gate));
        }
        if let (Some(network), Some(gate)) = (parts.network.descriptor(), gates.first()) {
            gate.sleeper.watch(network, token(NETWORK, 0))?;
        }
        let common = Common {
            names: Names::new(parts.rendezvous, BLOCKS_MAX),
            queue_pairs: QueuePairs::default(),
            network: parts.network,
            gsi: Gsi::default(),
            groups: Groups::default(),
            forward: Forward::default(),
            gates: gates.into(),
        };
        Ok(Arc::new(Self {
            private: Mutex::new(private.into_iter().map(ClosedInChildren::new).collect()),
            shards: Shards::new(common, parts.shards),
            completions: Completions::default(),
            serving: Mutex::default(),
            wanted: Mutex::default(),
            gone: Mutex::default(),
            control: Control::default(),
            notices: Notices::to_standard_error(),
        }))
    }

    /// What the shards have in common.
    pub fn common(&self) -> &Common {
        &self.shards.common
    }

    /// A number for a queue pair or a shared receive queue.
    pub fn take_number(&self) -> core::result::Result<u32, Errno> {
        let common = self.common();
        common.names.take(|_, block| {
            // Others may bring packets for it from now on.
            let listener = token(LISTENER, u64::from(block.number));
            let sleeper = &common.first_gate().sleeper;
            sleeper.watch(block.listener.raw(), listener)?;
            common.network.add_block(block.number as u16);
            Ok(())
        })
    }

    /// The number by which other processes know this one.
    pub fn tag(&self) -> core::result::Result<u16, Errno> {
        let names = &self.common().names;
        if let Some(block) = names.first_block() {
            return Ok(block as u16);
        }
        let number = self.take_number()?;
        names.give(number);
        Ok((number >> 8) as u16)
    }

    /// A queue pair that nobody knows yet.
    pub fn new_part(&self, params: &QpParams) -> core::result::Result<Arc<Part>, Errno> {
        let common = self.common();
        let qpn = self.take_number()?;
        let index = common.queue_pairs.take_index();
        let shard = common.shard_of(qpn);
        let queues = [params.send_cq, params.recv_cq];
        let member = self.completions.join(shard, queues);
        let shard_and_hole = (shard, self.shards[shard].hole());
        let part = Arc::new(Part::new(qpn, index, shard_and_hole, member, params));
        if self.control.is_armed() {
            // A queue may be armed that had nothing on this shard.
            self.shards[shard].gate.sleeper.wake_to_hear();
        }
        Ok(part)
    }

    /// What a queue pair has seen that is gone.
    pub fn remember(&self, seen: &Seen) {
        *lock(&self.gone) += seen;
    }

    /// What those have seen that are gone.
    pub fn remembered(&self) -> Seen {
        *lock(&self.gone)
    }
}

/// Completion queues.
impl Node {
    /// A poll of a completion queue found nothing. How many packets came.
    pub fn poll(&self, queue: &Sources, after: &mut Aftermath) -> usize {
        self.shards.poll(&self.completions, queue, after)
    }

    /// Somebody waits for a completion in this queue without polling.
    pub fn armed(&self, queue: &Sources) {
        self.shards.wake_to_hear(&self.completions, queue);
    }
}

/// What wakes the engine threads.
impl Node {
    /// Routes, neighbours or addresses have changed.
    pub fn network_changed(&self) {
        let common = self.common();
        if !common.network.process() {
            return;
        }
        for part in common.queue_pairs.table().by_index.iter().flatten() {
            self.shards.with_machine(part, |machine| {
                machine.reroute(|way| common.network.way_again(way));
            });
        }
    }

    /// Another process wants to bring packets for a block of this one.
    pub fn neighbour_came(&self, block: u32) {
        let common = self.common();
        let sleeper = &common.first_gate().sleeper;
        common.forward.accept(&common.names, sleeper, block);
    }

    /// Another process has brought something, or has ended.
    pub fn neighbour_brings(&self, id: u64) {
        let common = self.common();
        let sleeper = &common.first_gate().sleeper;
        let mut after = Aftermath::new();
        common.forward.take(sleeper, id, |message| match message {
            Message::Packet(qpn, received) => {
                self.shards
                    .inject(common.shard_of(qpn), &received, &mut after);
            }
            Message::Mad(path, mad) => common.gsi.came(&path, mad, true),
        });
        after.run();
    }

    /// The engine threads are to end.
    pub fn stop(&self) {
        self.control.stop();
        self.shards.wake();
    }
}

/// Interfaces that are served past the kernel's stack.
impl Node {
    /// The way to a peer. The interface of the path is served by AF_XDP from now on if that is
    /// possible, and has its link again when this returns, or has not got it back within some seconds.
    /// Without any lock: the shards get more ports. `mtu`: the path MTU's code, or 0.
    pub fn serve_and_way(&self, path: &Path, mtu: u32) -> Result<Way> {
        let common = self.common();
        if let Some(interface) = common.network.untried(path) {
            self.serve_or_say_why(interface);
        }
        let way = common.network.way(path, mtu)?;
        let way = match common.network.without_link(&way) {
            Some(interface) => {
                self.wait_for_link(interface);
                // What was known of the neighbour went with the link.
                common.network.way_again(&way)
            }
            None => way,
        };
        common.network.expect_packets();
        common.first_gate().sleeper.wake();
        Ok(way)
    }

    /// The same for a datagram that is being posted: with a lock behind the shards', so that the engine
    /// thread gives them their ports. The first datagrams go by UDP.
    pub fn way_and_serve_soon(&self, path: &Path) -> Result<Way> {
        let common = self.common();
        let way = common.network.way(path, 0)?;
        if way.port == UDP_PORT
            && let Some(interface) = common.network.untried(path)
        {
            lock(&self.wanted).push(interface);
            common.first_gate().sleeper.wake();
        }
        Ok(way)
    }

    /// Serves the interfaces that datagrams were sent by. By the engine thread.
    pub fn serve_wanted(&self) {
        let wanted = core::mem::take(&mut *lock(&self.wanted));
        for interface in wanted {
            self.serve_or_say_why(interface);
        }
    }

    /// Where AF_XDP is not to be had, UDP does it.
    fn serve_or_say_why(&self, index: u32) {
        let Err(error) = self.serve(index) else {
            return;
        };
        let interface = sluice_xdp::Interface::by_index(index);
        let name = interface.map_or_else(
            |_| format!("interface {index}"),
            |found| found.name().to_owned(),
        );
        self.notices.say(&format!(
            "no AF_XDP on {name}, packets go through UDP sockets: {error}"
        ));
    }

    /// What is sent before the link is back is lost, and a peer's retries can end before that.
    fn wait_for_link(&self, index: u32) {
        // An interface that is gone has no link to wait for.
        if let Ok(interface) = sluice_xdp::Interface::by_index(index)
            && !interface.wait_for_link()
        {
            self.notices.say(&format!(
                "the link of {} went away when the XDP program was attached, and is not back after ten \
                 seconds: requests fail until it is",
                interface.name()
            ));
        }
        self.common().network.note_link(index, true);
    }

    fn serve(&self, index: u32) -> core::result::Result<(), sluice_xdp::OpenError> {
        let interface = sluice_xdp::Interface::by_index(index)?;
        let had_link = interface.has_link();
        let (steering, ports) = interface.open(&sluice_xdp::Options::default())?;
        if had_link && !interface.has_link() {
            self.common().network.note_link(index, false);
        }
        let left = ports.first().map(XdpPort::left);
        let ports = ports
            .into_iter()
            .map(|port| crate::ports::dressed(port, Below::Port))
            .collect();
        let shares = crate::ports::share::deal(ports, self.shards.count());
        let mut descriptors = Vec::new();
        let serving = (Rank::Change.wait(), lock(&self.serving));
        let mut first = 0;
        for (shard, port) in self.shards.iter().zip(shares) {
            let own = port.facts().descriptors;
            first = shard.serve(port, left.clone());
            for descriptor in &own {
                // A port that is not watched is found by the watching thread's rounds.
                let _ = shard.gate.sleeper.add_port(*descriptor, XDP);
            }
            descriptors.extend(own);
        }
        drop(serving);
        let all = descriptors.into_iter().chain(steering.descriptors());
        lock(&self.private).extend(all.map(ClosedInChildren::new));
        self.common().network.serve(steering, first);
        // Whoever posted while a shard was held left a note.
        self.shards.wake();
        Ok(())
    }
}
