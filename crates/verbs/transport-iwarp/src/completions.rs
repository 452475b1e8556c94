//! The queue pairs whose completions come to a completion queue, for whoever polls that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use sluice_verbs::Aftermath;
use sluice_verbs::locks::{lock, read, write};

use crate::socket::{Interest, Poll, Ready};

/// Up to so many streams are asked directly, which is one call of the kernel each; of more, those
/// that have something are asked for first.
const DIRECT_MAX: usize = 2;

/// A queue pair, as a completion queue knows it.
pub trait Member: Send + Sync {
    /// What names it where sockets are waited for.
    fn token(&self) -> u64;

    /// Somebody has left something for it.
    fn is_noted(&self) -> bool;

    /// The queue waits for many sockets now, this one's among them.
    fn watched_by(&self, queue: &Sources);

    /// Does what there is: frames that came.
    fn progress(&self, after: &mut Aftermath) -> u64;
}

type Members = Arc<Vec<Arc<dyn Member>>>;

/// A completion queue.
#[derive(Default)]
pub struct Sources {
    parts: RwLock<Members>,
    /// For many streams; None before there are.
    poll: Mutex<Option<Poll>>,
}

impl Sources {
    fn parts(&self) -> Members {
        Arc::clone(&read(&self.parts))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<dyn Member>>)) {
        let mut parts = write(&self.parts);
        let mut list = parts.to_vec();
        change(&mut list);
        *parts = Arc::new(list);
        let all = Arc::clone(&parts);
        drop(parts);
        if all.len() <= DIRECT_MAX {
            return;
        }
        let mut poll = lock(&self.poll);
        if poll.is_some() {
            return;
        }
        // Without one all are asked.
        *poll = Poll::new().ok();
        drop(poll);
        // Whoever has one of these may be about to take what was held here.
        for part in all.iter() {
            part.watched_by(self);
        }
    }

    /// A stream's socket has come, or something else is waited for at it.
    pub fn watch(&self, fd: i32, interest: Interest, token: u64) {
        if let Some(poll) = &*lock(&self.poll)
            && poll.change(fd, interest, token).is_err()
        {
            // Not there yet. What fails is found by the transport's own threads.
            let _ = poll.add(fd, interest, token);
        }
    }

    pub fn forget(&self, fd: i32) {
        if let Some(poll) = &*lock(&self.poll) {
            poll.remove(fd);
        }
    }

    /// The queue pairs to look at now.
    pub fn each(&self, mut look: impl FnMut(&dyn Member)) {
        let parts = self.parts();
        if parts.len() <= DIRECT_MAX {
            parts.iter().for_each(|part| look(&**part));
            return;
        }
        let mut ready: Vec<Ready> = Vec::new();
        let known = match &*lock(&self.poll) {
            Some(poll) => {
                poll.wait(&mut ready, 0);
                true
            }
            None => false,
        };
        for part in parts.iter() {
            let came = !known || ready.iter().any(|ready| ready.token == part.token());
            if came || part.is_noted() {
                look(&**part);
            }
        }
    }
}

/// The completion queues of a transport.
#[derive(Default)]
pub struct Completions {
    by_id: Mutex<HashMap<u32, Arc<Sources>>>,
}

impl Completions {
    /// A completion queue of that number is there from now on.
    pub fn add(&self, id: u32) -> Arc<Sources> {
        let sources = Arc::<Sources>::default();
        lock(&self.by_id).insert(id, Arc::clone(&sources));
        sources
    }

    /// It is gone.
    pub fn remove(&self, id: u32, sources: &Arc<Sources>) {
        let mut by_id = lock(&self.by_id);
        // Its number may be another's by now.
        if by_id.get(&id).is_some_and(|own| Arc::ptr_eq(own, sources)) {
            by_id.remove(&id);
        }
    }

    /// Those of these numbers, each once.
    pub fn of(&self, queues: [Option<u32>; 2]) -> Vec<Arc<Sources>> {
        let by_id = lock(&self.by_id);
        let mut all: Vec<Arc<Sources>> = Vec::new();
        for sources in queues.iter().flatten().filter_map(|id| by_id.get(id)) {
            if !all.iter().any(|known| Arc::ptr_eq(known, sources)) {
                all.push(Arc::clone(sources));
            }
        }
        all
    }
}

/// A queue pair completes to these from now on, or no longer.
pub fn join(sources: &[Arc<Sources>], part: &Arc<dyn Member>) {
    for sources in sources {
        sources.change(|parts| parts.push(Arc::clone(part)));
    }
}

pub fn leave(sources: &[Arc<Sources>], part: &Arc<dyn Member>) {
    for sources in sources {
        sources.change(|parts| parts.retain(|other| !Arc::ptr_eq(other, part)));
    }
}
