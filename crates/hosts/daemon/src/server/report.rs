//! The document that `sluice status` asks for.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sluice_control::message::{FromDaemon, Reason};
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::Fd;

use super::Server;
use crate::fabric::Fabric;
use crate::matching::ClientId;
use crate::status::{FORMAT, LaneCounts, Listed, Report, Sources};

/// Whoever asks again in ten times the time that a document took gets the same one, so that those
/// who ask all the time have a tenth of the thread at most.
const AGE_PER_COST: u32 = 10;
/// What took less is made anew each time: who asks for it has his turns, as with any message.
const COST_KEPT: Duration = Duration::from_millis(1);
/// Users whose documents are kept.
const USERS_MAX: usize = 64;

/// What was answered lately. A document is the same for all who see the same programs.
#[derive(Debug, Default)]
pub struct Documents {
    /// By the user whose programs it has; None for all.
    last: HashMap<Option<u32>, Document>,
}

#[derive(Debug)]
struct Document {
    memory: Fd,
    bytes: u64,
    cost: Duration,
    good_until: Instant,
}

/// Of this thread: what others do on a busy machine is not what a document costs.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Documents {
    /// Forgets those that are too old.
    pub(super) fn expire(&mut self) {
        if !self.last.is_empty() {
            let now = Instant::now();
            self.last.retain(|_, last| last.good_until > now);
        }
    }
}

impl Server {
    /// To a client, what the user `uid` may see.
    pub(super) fn report(&mut self, id: ClientId, uid: u32) {
        // Everything for root and sluiced's own user, else its own.
        let whose = (uid != 0 && uid != self.uid).then_some(uid);
        self.documents.expire();
        if let Some(last) = self.documents.last.get(&whose) {
            self.hand_out(id, last);
            return;
        }
        let document = match self.make_document(whose) {
            Ok(document) => document,
            Err(error) => {
                tracing::warn!(reason = %error, "no status: {error}");
                let reason = Reason::Full;
                self.send(id, &FromDaemon::Refused { reason }, &[]);
                return;
            }
        };
        self.hand_out(id, &document);
        if document.cost >= COST_KEPT {
            if self.documents.last.len() >= USERS_MAX {
                self.documents.last.clear();
            }
            self.documents.last.insert(whose, document);
        }
    }

    fn hand_out(&self, id: ClientId, document: &Document) {
        let bytes = document.bytes;
        self.send(id, &FromDaemon::Report { bytes }, &[document.memory.raw()]);
    }

    fn make_document(&self, whose: Option<u32>) -> io::Result<Document> {
        let begun = processor_time();
        let text = self.status_document(whose)?;
        let memory = memfd::create(c"sluice-status")?;
        memfd::write_at(memory.raw(), &text, 0)?;
        // Several get it.
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
        let cost = processor_time().saturating_sub(begun);
        Ok(Document {
            memory,
            bytes: text.len() as u64,
            cost,
            good_until: Instant::now() + cost * AGE_PER_COST,
        })
    }

    fn status_document(&self, whose: Option<u32>) -> io::Result<Vec<u8>> {
        let sources = self.sources(|uid| whose.is_none_or(|user| user == uid));
        let listing = sources.listing();
        let report = Report {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            ring_bytes: self.lanes.ring_bytes(),
            lanes: LaneCounts {
                in_use: self.lanes.in_use(),
                max: self.lanes.lanes_max(),
                chunks: self.lanes.chunk_count(),
                shrunk: self.lanes.shrunk_count(),
            },
            no_lanes: self.prover.incapable(),
            ends_announced: self.matcher.len(),
            options: whose.is_none().then_some(&self.options),
            counters: &self.counters,
            fabric: self
                .fabric
                .as_ref()
                .filter(|_| whose.is_none())
                .map(Fabric::report),
            truncated: listing.is_partial,
            processes: listing.processes,
        };
        Ok(serde_json::to_vec(&report)?)
    }

    /// What a status is made of that shows the programs of these users.
    pub(super) fn sources(&self, is_shown: impl Fn(u32) -> bool) -> Sources<'_> {
        let programs = || {
            self.clients
                .iter()
                .filter_map(|(id, client)| Some((*id, client, client.program.as_ref()?)))
        };
        let mut shown: Vec<Listed<'_>> = programs()
            .map(|(client, state, program)| Listed {
                client,
                uid: state.credentials.uid,
                program,
            })
            .filter(|listed| is_shown(listed.uid))
            .collect();
        shown.sort_by_key(|listed| listed.client);
        Sources {
            shown,
            programs: programs().map(|(id, _, program)| (id, program)).collect(),
            matcher: &self.matcher,
            lanes: &self.lanes,
            fabric: self.fabric.as_ref(),
        }
    }
}
