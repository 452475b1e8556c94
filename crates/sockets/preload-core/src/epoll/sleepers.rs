//! Who sleeps on an instance, and on those inside it.

use super::instance::{Instance, instance, instances};
use super::item::{Glance, Kind};

/// Instances in instances in ... (the kernel allows five, EP_MAX_NESTS).
const NESTING_MAX: u32 = 5;

/// Whether something that an instance has is reported by one that it is registered in for these events.
pub(super) fn is_heard_outside(events: u32) -> bool {
    events & (libc::EPOLLIN | libc::EPOLLRDNORM) as u32 != 0
}

/// The instances directly inside this one whose events it reports.
fn children(this: &Instance) -> Vec<u32> {
    let mut out = Vec::new();
    if let Some(mut state) = this.lock() {
        for at in 0..state.children.len() {
            let number = state.children[at];
            if let Some(item) = state.item(number)
                && let Kind::Instance(inner) = item.kind
                && is_heard_outside(item.events)
            {
                out.push(inner);
            }
        }
    }
    out
}

/// Whether the program waits for an instance, or for one that it is in, by calls that Sluice sees.
pub(super) fn is_instance_waited_for(this: &Instance) -> bool {
    let is_it = |one: &Instance| core::ptr::eq(one, this);
    let holds =
        |outer: &Instance, depth| outer.unlocked.is_waited_for() && contains(outer, &is_it, depth);
    instances().any(|(_, outer)| holds(outer, 0))
}

fn contains(outer: &Instance, is_it: &impl Fn(&Instance) -> bool, depth: u32) -> bool {
    let is_inside = |inner| contains(instance(inner), is_it, depth + 1);
    is_it(outer) || depth < NESTING_MAX && children(outer).into_iter().any(is_inside)
}

/// What rings have for an instance that is itself waited for.
pub fn glance(index: u32, depth: u32) -> Glance {
    let this = instance(index);
    this.unlocked.note_wait();
    if depth > NESTING_MAX || this.unlocked.item_count() == 0 {
        return Glance::Nothing;
    }
    let mut found = Glance::Nothing;
    {
        let Some(mut state) = this.lock() else {
            // Somebody else looks right now, and this thread may not wait for him.
            return Glance::Hot;
        };
        state.collect();
        if state.check_granted() {
            found = Glance::Hot;
        }
        for at in 0..state.queue.len() {
            let number = state.queue[at];
            if let Some(item) = state.item(number)
                && item.kind == Kind::Socket
            {
                found = found.max(item.peek());
            }
        }
    }
    for child in children(this) {
        found = found.max(glance(child, depth + 1));
    }
    found
}

/// The instances on which the sleep of one thread was announced.
pub struct Sleep {
    /// The outermost one; none in a signal handler on top of a holder of its lock.
    index: Option<u32>,
    /// Those inside, at that time: others may be inside when the thread wakes.
    inner: Vec<u32>,
}

/// Announces that a thread sleeps on something that contains the instance.
pub fn enter_sleep(index: u32) -> Sleep {
    let mut inner = Vec::new();
    let this = instance(index);
    let index = this.lock().map(|mut state| {
        state.announce_sleep();
        index
    });
    enter_children(this, 1, &mut inner);
    Sleep { index, inner }
}

/// Takes [`enter_sleep`] back.
pub fn leave_sleep(sleep: &Sleep) {
    withdraw_all(&sleep.inner);
    if let Some(index) = sleep.index {
        withdraw(instance(index));
    }
}

/// Announces the sleep on everything inside, and adds it to `entered`.
pub(crate) fn enter_children(this: &Instance, depth: u32, entered: &mut Vec<u32>) {
    if depth > NESTING_MAX {
        return;
    }
    for child in children(this) {
        let inner = instance(child);
        if let Some(mut state) = inner.lock() {
            state.announce_sleep();
            entered.push(child);
        }
        enter_children(inner, depth + 1, entered);
    }
}

pub(crate) fn withdraw_all(entered: &[u32]) {
    for index in entered {
        withdraw(instance(*index));
    }
}

/// Takes the announcement of one thread back.
pub(crate) fn withdraw(this: &Instance) {
    let Some(mut state) = this.lock() else {
        return;
    };
    let joined = state.withdraw_sleep();
    drop(state);
    for (index, sleepers) in joined {
        for _ in 0..sleepers {
            withdraw(instance(index));
        }
    }
}

/// The instance `index` was put into `outer`, on which `sleepers` threads sleep already. They are
/// woken if its rings have something, and sleep on it, too, otherwise.
pub(super) fn join_sleepers(outer: &Instance, index: u32, sleepers: u32) {
    let Sleep { index: own, inner } = enter_sleep(index);
    for joined in inner.iter().chain(&own) {
        for _ in 1..sleepers {
            if let Some(mut state) = instance(*joined).lock() {
                state.announce_sleep();
            }
        }
    }
    if let Some(mut state) = outer.lock() {
        for joined in inner.iter().chain(&own) {
            state.note_joined(*joined, sleepers);
        }
        // The sleepers may have left meanwhile. Then it is for this thread to take that back.
        state.announce_sleep();
    }
    withdraw(outer);
    rouse(index, 1);
}

fn rouse(index: u32, depth: u32) {
    if depth > NESTING_MAX {
        return;
    }
    let this = instance(index);
    if let Some(mut state) = this.lock() {
        state.rouse(this.epfd());
    }
    for child in children(this) {
        rouse(child, depth + 1);
    }
}
