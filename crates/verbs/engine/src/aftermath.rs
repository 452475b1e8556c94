//! What calls of a transport leave to be done once it holds none of its locks.
//!
//! A completion makes room for requests that were held, and a failure ends a queue pair: both lead
//! back to the transport, by [`QpTransport::post`](crate::QpTransport::post) and
//! [`QpTransport::modify`](crate::QpTransport::modify). But who completes a request is in the middle of
//! its work and holds its locks. So such calls only write down here what follows, and whoever makes
//! progress [runs](Aftermath::run) it when it has let go of everything.

use std::sync::{Arc, Weak};

use sluice_verbs_model::types::QpState;

/// Whom something follows for: a queue pair, which stands above this.
pub(crate) trait Concerned: Send + Sync {
    /// Held requests can go out.
    fn hand_over(&self);

    /// It is to move there, unless it has been in RESET since `incarnation`.
    fn break_down(&self, to: QpState, incarnation: u32);
}

/// What is to be done for queue pairs, in the order in which it came up.
#[derive(Default)]
#[must_use = "what it says must be run"]
pub struct Aftermath {
    due: Vec<Due>,
}

struct Due {
    whom: Arc<dyn Concerned>,
    /// Since its last RESET. What came up before another one means nothing behind it.
    incarnation: u32,
    /// Held requests can go out.
    hands_over: bool,
    /// It is to move there.
    breaks: Option<QpState>,
}

impl Aftermath {
    pub const fn new() -> Aftermath {
        Aftermath { due: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Whether a queue pair breaks: better run before more is done for it.
    pub fn breaks_any(&self) -> bool {
        self.due.iter().any(|due| due.breaks.is_some())
    }

    /// Adds what another says, behind what this one does.
    pub fn append(&mut self, other: &mut Aftermath) {
        self.due.append(&mut other.due);
    }

    /// Does it, and what comes up meanwhile. The caller holds no lock of the transport's: requests are
    /// handed over from here, and queue pairs are moved to other states.
    #[inline]
    pub fn run(&mut self) {
        if !self.due.is_empty() {
            self.run_all();
        }
    }

    #[cold]
    fn run_all(&mut self) {
        for due in self.due.drain(..) {
            if due.hands_over {
                due.whom.hand_over();
            }
            if let Some(to) = due.breaks {
                due.whom.break_down(to, due.incarnation);
            }
        }
    }

    pub(crate) fn hand_over<T: Concerned + 'static>(&mut self, whom: &Weak<T>, incarnation: u32) {
        self.of(whom, incarnation, |due| due.hands_over = true);
    }

    pub(crate) fn break_down<T: Concerned + 'static>(
        &mut self,
        whom: &Weak<T>,
        incarnation: u32,
        to: QpState,
    ) {
        self.of(whom, incarnation, |due| {
            // ERR is the worst that can be wanted.
            if due.breaks != Some(QpState::Err) {
                due.breaks = Some(to);
            }
        });
    }

    /// Notes something about one of them; not about one that is being dropped.
    #[cold]
    fn of<T: Concerned + 'static>(
        &mut self,
        whom: &Weak<T>,
        incarnation: u32,
        note: impl FnOnce(&mut Due),
    ) {
        if let Some(last) = self.due.last_mut()
            && Arc::as_ptr(&last.whom).addr() == whom.as_ptr().addr()
            && last.incarnation == incarnation
        {
            return note(last);
        }
        let Some(whom) = whom.upgrade() else { return };
        let mut due = Due {
            whom,
            incarnation,
            hands_over: false,
            breaks: None,
        };
        note(&mut due);
        self.due.push(due);
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        debug_assert!(
            self.due.is_empty() || std::thread::panicking(),
            "an aftermath was not run"
        );
    }
}

/// Makes calls of a transport and does what they leave: for who holds no lock.
pub fn with_aftermath<R>(calls: impl FnOnce(&mut Aftermath) -> R) -> R {
    let mut after = Aftermath::new();
    let result = calls(&mut after);
    after.run();
    result
}
