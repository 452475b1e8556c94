//! Ends that were closed without a word. A program never waits for sluiced: what it says when its
//! connection to a busy one is full is lost. So a moment after ends came or went, all are looked at
//! in the tables of their programs.

use std::time::{Duration, Instant};

use sluice_sys::process;

use super::Server;
use crate::end_table;
use crate::matching::ClientId;

/// From the first change to the look; what comes meanwhile is looked at with it.
const DELAY: Duration = Duration::from_secs(1);

impl Server {
    /// An end came or went.
    pub(super) fn note_change(&mut self) {
        if self.sweep_at.is_none() {
            self.sweep_at = Some(Instant::now() + DELAY);
        }
    }

    /// Releases ends that are over, if it is time to look.
    pub(super) fn sweep(&mut self) {
        if self.sweep_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.sweep_at = None;
        let ended: Vec<(ClientId, u32, u32)> = self.ended().collect();
        for (client, end, generation) in ended {
            self.release(client, end, generation);
        }
        if self.matcher.give_memory_back() {
            process::trim_heap();
        }
    }

    fn ended(&self) -> impl Iterator<Item = (ClientId, u32, u32)> {
        self.clients.iter().flat_map(|(id, client)| {
            // Of one that knew an earlier sluiced the table is not to be had.
            let program = client.program.as_ref().filter(|it| !it.is_earlier);
            let entries = self.matcher.entries_of(*id);
            let announced = entries.map(|entry| {
                let announced = &entry.announced;
                (announced.key.end, announced.generation)
            });
            let ended = program.map(|it| end_table::ended(it.end_table.raw(), announced));
            let ended = ended.unwrap_or_default().into_iter();
            ended.map(|(end, generation)| (*id, end, generation))
        })
    }
}
