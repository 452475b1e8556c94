//! The memories of one window. When `sluice window serve` is started anew it gives out other memory: new lanes lie
//! there, and the memory before is *retired*. It is kept while a connection lies in it, while some process has a piece
//! of it mapped, and while it is the newest that a peer shares with this host: a peer whose daemon or whose virtual
//! machine stays in it goes on to get lanes there.

use std::path::Path;
use std::time::{Duration, Instant};

use sluice_peering::config::window::Window as Choice;
use sluice_sys::unix::Fd;

use super::pieces::{Place, WindowId};
use super::server::{Event, Origin, Server};
use super::shared::{Changes, Shared};

/// Memories of one window at a time.
pub const MEMORIES_MAX: usize = 4;
/// How long retired memory is kept when nobody uses it: a peer may see later than this host that both share newer one.
const LINGER: Duration = Duration::from_secs(10);

/// One of `[[window]]`.
#[derive(Debug)]
pub struct Window {
    pub choice: Choice,
    server: Server,
    /// First the one that new lanes lie in, then those that are retired, the last one first.
    memories: Vec<Memory>,
    /// What people were told last of what is in the way; none if nothing is.
    told: Option<String>,
}

#[derive(Debug)]
struct Memory {
    shared: Shared,
    /// Retired, and used by nobody since then.
    idle_since: Option<Instant>,
}

impl Window {
    /// Has no memory yet.
    pub fn new(choice: &Choice, now: Instant) -> Window {
        Window {
            choice: choice.clone(),
            server: Server::new(&choice.path, now),
            memories: Vec::new(),
            told: None,
        }
    }

    /// When [`Window::turn`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.all().map(|shared| shared.due);
        due.chain(self.server.next_deadline()).min()
    }

    /// Looks at the server, and after all memories.
    pub fn turn(&mut self, now: Instant, now_ns: u64, name: &str, changes: &mut Changes) {
        if let Some(event) = self.server.turn(now) {
            self.heard(event, now, name);
        }
        let path = &self.choice.path;
        for memory in &mut self.memories {
            memory.shared.turn(now, now_ns, (path, name), changes);
        }
    }

    /// How things stand, in a word for people.
    pub fn state(&self) -> &'static str {
        if self.memories.is_empty() {
            return "no memory";
        }
        self.server.state()
    }

    /// All memories, the one that new lanes lie in first.
    pub fn all(&self) -> impl Iterator<Item = &Shared> {
        self.memories.iter().map(|memory| &memory.shared)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Shared> {
        self.memories.iter_mut().map(|memory| &mut memory.shared)
    }

    pub fn memory(&self, id: WindowId) -> Option<&Shared> {
        self.all().find(|shared| shared.id() == id)
    }

    pub fn memory_mut(&mut self, id: WindowId) -> Option<&mut Shared> {
        self.all_mut().find(|shared| shared.id() == id)
    }

    /// The memory of that number, and this window's path.
    pub fn memory_and_path(&mut self, id: WindowId) -> Option<(&Path, &mut Shared)> {
        let mut all = self.memories.iter_mut().map(|memory| &mut memory.shared);
        let shared = all.find(|shared| shared.id() == id)?;
        Some((&self.choice.path, shared))
    }

    pub fn is_retired(&self, id: WindowId) -> bool {
        self.all().skip(1).any(|shared| shared.id() == id)
    }

    /// Whether there is retired memory.
    pub fn has_retired(&self) -> bool {
        self.memories.len() > 1
    }

    /// The slots of this host and of a peer, in the newest memory in which both are. `at` is this window's place.
    pub fn place(&self, at: usize, name: &str) -> Option<Place> {
        self.all().find_map(|shared| shared.place(at, name))
    }

    /// Gives retired memory back that nobody has used for a while. `is_used`: something that lies in it is in use.
    pub fn give_back(&mut self, now: Instant, is_used: impl Fn(WindowId) -> bool) {
        let is_newest = |shared: &Shared| {
            let mut holders = shared.holders();
            holders.any(|(_, name)| self.place(0, name).map(|it| it.id) == Some(shared.id()))
        };
        let is_idle: Vec<bool> = self
            .all()
            .map(|shared| !is_used(shared.id()) && !is_newest(shared))
            .collect();
        for (memory, is_idle) in self.memories.iter_mut().zip(is_idle).skip(1) {
            memory.idle_since = is_idle.then(|| memory.idle_since.unwrap_or(now));
        }
        while self.leave_idle(|since| now >= since + LINGER) {}
    }

    /// Gives one retired memory back, the oldest that is idle for so long. Whether there was one.
    fn leave_idle(&mut self, is_enough: impl Fn(Instant) -> bool) -> bool {
        let mut all = self.memories.iter();
        let Some(at) = all.rposition(|memory| memory.idle_since.is_some_and(&is_enough)) else {
            return false;
        };
        self.memories.remove(at).shared.leave();
        tracing::info!(
            "the memory that the window {} had before is given back",
            self.choice.path.display()
        );
        true
    }

    fn heard(&mut self, event: Event, now: Instant, name: &str) {
        let path = self.choice.path.display();
        match event {
            Event::Memory(memory, origin) => {
                if let Err(what) = self.join(memory, origin, name) {
                    self.server.refuse(now);
                    self.tell(what);
                }
            }
            Event::Gone(why) => {
                let what = format!(
                    "the server of the window {path} has gone ({why}): connections go on in its memory, and new ones \
                     lie there, too. What `sluice window serve` gives out there next is joined without a restart"
                );
                self.tell(what);
            }
            // It was said that the server has gone.
            Event::Failed(_) if !self.memories.is_empty() => {}
            Event::Failed(why) => self.tell(format!("no window at {path}: {why}")),
        }
    }

    /// Said once, and then whenever it is asked for.
    fn tell(&mut self, what: String) {
        if self.told.as_ref() != Some(&what) {
            tracing::warn!("{what}");
            self.told = Some(what);
        }
    }

    /// New lanes lie in this memory from now on.
    pub(super) fn join(&mut self, memory: Fd, origin: Origin, name: &str) -> Result<(), String> {
        let path = self.choice.path.display().to_string();
        let known = self.all().position(|shared| shared.is_file(&memory));
        let joined = match known {
            Some(at) => self.memories.remove(at),
            None => {
                let wrong = if self.memories.is_empty() {
                    format!("no window at {path}")
                } else {
                    format!(
                        "the server of the window {path} gives out what is none, and this host stays in the memory \
                         that it has"
                    )
                };
                let shared = Shared::open(memory, origin, name);
                let shared = shared.map_err(|why| format!("{wrong}: {why}"))?;
                if self.memory(shared.id()).is_some() {
                    return Err(format!("{wrong}: it is a copy of a window"));
                }
                let is_full = self.memories.len() >= MEMORIES_MAX;
                if is_full && !self.leave_idle(|_| true) {
                    return Err(format!(
                        "the window {path} has had other memory {MEMORIES_MAX} times, and connections go on in all of \
                         it: what its server gives out now is joined when those of one memory have ended"
                    ));
                }
                Memory {
                    shared,
                    idle_since: None,
                }
            }
        };
        let former = self.all().next().map(Shared::id);
        if known == Some(0) {
            tracing::info!(
                "the window {path} is served again, with the memory that this host is in"
            );
        } else if let Some(former) = former {
            tracing::info!(
                "the server of the window {path} gives out other memory, {}: new connections lie there. Those in {} go \
                 on there until they end",
                text(joined.shared.id()),
                text(former)
            );
        }
        self.memories.insert(0, joined);
        self.memories[0].idle_since = None;
        self.told = None;
        Ok(())
    }
}

/// As `sluice window show` has it.
pub fn text(id: WindowId) -> String {
    format!("{:016x}{:016x}", id[0], id[1])
}

#[cfg(test)]
mod tests;
