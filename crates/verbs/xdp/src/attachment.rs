//! The program on its interface, and off it while it is not wanted.
//!
//! The kernel waits for all processors when a program comes or goes, some ten milliseconds. So a thread
//! that lives as long as that does it, and whoever wants it goes on meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_sys::bpf::{Link, Program};
use sluice_sys::local_fd::ClosedInChildren;
use sluice_sys::process::block_signals;

use crate::left::Left;

/// Time from an attempt that failed, because another program is there say, to the next one.
const REFUSED: Duration = Duration::from_secs(1);

/// What keeps the program attached. A child of fork closes it.
#[derive(Debug)]
struct Attached {
    // Before the link: from then on its number may be another file's.
    _private: ClosedInChildren,
    _link: Link,
}

impl Attached {
    fn new(link: Link) -> Self {
        Self {
            _private: ClosedInChildren::new(link.raw()),
            _link: link,
        }
    }
}

#[derive(Debug)]
struct State {
    attached: Option<Attached>,
    is_wanted: bool,
    /// A thread is at it, and looks at `is_wanted` again before it ends.
    is_changing: bool,
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    program: Program,
    interface: u32,
    native: bool,
    left: Arc<Left>,
    state: Mutex<State>,
}

/// Attached at first; detached when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct Attachment(Arc<Shared>);

impl Attachment {
    pub fn new(
        program: Program,
        link: Link,
        interface: u32,
        native: bool,
        left: Arc<Left>,
    ) -> Self {
        let state = State {
            attached: Some(Attached::new(link)),
            is_wanted: true,
            is_changing: false,
            not_before: None,
        };
        Self(Arc::new(Shared {
            program,
            interface,
            native,
            left,
            state: Mutex::new(state),
        }))
    }

    pub fn program(&self) -> &Program {
        &self.0.program
    }

    /// Attaches or detaches it soon. One that cannot be attached is tried again when this is asked
    /// for a second later. By a thread of the interface's network namespace.
    pub fn want(&self, is_wanted: bool) {
        let mut state = self.0.lock();
        state.is_wanted = is_wanted;
        let is_refused = is_wanted && state.not_before.is_some_and(|at| Instant::now() < at);
        if state.is_changing || state.attached.is_some() == is_wanted || is_refused {
            return;
        }
        let shared = Arc::clone(&self.0);
        let started = std::thread::Builder::new()
            .name("sluice-attach".to_owned())
            .spawn(move || shared.follow());
        state.is_changing = started.is_ok();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_wanted = false;
        self.0.left.set_attached(false);
        if !state.is_changing {
            state.attached = None;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it is as it is wanted. The lock is never held while the kernel is at work.
    fn follow(&self) {
        block_signals();
        loop {
            let mut state = self.lock();
            if state.attached.is_some() == state.is_wanted {
                state.is_changing = false;
                return;
            }
            if let Some(attached) = state.attached.take() {
                drop(state);
                self.left.set_attached(false);
                drop(attached);
                continue;
            }
            drop(state);
            let link = self
                .program
                .attach_to_interface(self.interface, self.native);
            let mut state = self.lock();
            match link {
                Ok(link) => {
                    self.left.set_attached(true);
                    state.attached = Some(Attached::new(link));
                }
                Err(_) => {
                    // Packets go on coming by the kernel.
                    state.not_before = Some(Instant::now() + REFUSED);
                    state.is_changing = false;
                    return;
                }
            }
        }
    }
}
