//! What calls of a transport leave to be done once it holds none of its locks.
//!
//! A completion makes room for requests that were held, and a failure ends a queue pair: both lead
//! back to the transport, by [`QpTransport::post`](crate::QpTransport::post) and
//! [`QpTransport::modify`](crate::QpTransport::modify). But who completes a request is in the middle of
//! its work and holds its locks. So such calls only write down here what follows, and whoever makes
//! progress [settles](Aftermath::settle) it when it has let go of everything.

use std::sync::Arc;

use crate::Qp;
use crate::types::QpState;

/// What is to be done for queue pairs, in the order in which it came up.
#[derive(Default)]
#[must_use = "what it says must be settled"]
pub struct Aftermath {
    due: Vec<Due>,
}

struct Due {
    qp: Arc<Qp>,
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

    /// Whether a queue pair breaks: better settled before more is done for it.
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
    pub fn settle(&mut self) {
        if !self.due.is_empty() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        for due in self.due.drain(..) {
            if due.hands_over {
                due.qp.pump();
            }
            if let Some(to) = due.breaks {
                due.qp.break_down(to, due.incarnation);
            }
        }
    }

    pub(crate) fn hand_over(&mut self, qp: &Qp) {
        self.of(qp, |due| due.hands_over = true);
    }

    pub(crate) fn break_down(&mut self, qp: &Qp, to: QpState) {
        self.of(qp, |due| {
            // ERR is the worst that can be wanted.
            if due.breaks != Some(QpState::Err) {
                due.breaks = Some(to);
            }
        });
    }

    /// Notes something about a queue pair; not about one that is being dropped.
    #[cold]
    fn of(&mut self, qp: &Qp, note: impl FnOnce(&mut Due)) {
        let incarnation = qp.incarnation();
        if let Some(last) = self.due.last_mut()
            && core::ptr::eq(Arc::as_ptr(&last.qp), qp)
            && last.incarnation == incarnation
        {
            return note(last);
        }
        let Some(qp) = qp.weak().upgrade() else {
            return;
        };
        let mut due = Due {
            qp,
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
            "an aftermath was not settled"
        );
    }
}

/// Makes calls of a transport and settles what they leave: for who holds no lock.
pub fn settled<R>(calls: impl FnOnce(&mut Aftermath) -> R) -> R {
    let mut after = Aftermath::new();
    let result = calls(&mut after);
    after.settle();
    result
}
