//! Connections whose ring sluiced offers to a program on another host: while one is there nobody may
//! sleep. Offers last long, so they are not looked at in each round as writes in flight are: what
//! comes sets the lane's ready bit, and a few in each round are asked whether their offer has ended.

use super::state::State;

/// Asked in one round.
const CHECKED: usize = 4;

/// The registrations with an offer, and whose turn it is to be asked.
#[derive(Default)]
pub(super) struct Offered {
    numbers: Vec<u32>,
    next: usize,
}

impl Offered {
    /// None.
    pub const fn new() -> Self {
        Self {
            numbers: Vec::new(),
            next: 0,
        }
    }

    /// All of them, and perhaps some whose offer has ended.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The registration is gone.
    pub fn forget(&mut self, number: u32) {
        self.numbers.retain(|known| *known != number);
    }
}

impl State {
    /// The ring of this registration's connection is offered.
    pub fn note_offered(&mut self, number: u32) {
        if let Some(item) = self.item(number)
            && !std::mem::replace(&mut item.is_offered, true)
        {
            self.offered.numbers.push(number);
        }
    }

    /// Queues what it finds to be offered no more. Whether anything is left.
    pub fn check_offered(&mut self) -> bool {
        for _ in 0..CHECKED.min(self.offered.numbers.len()) {
            self.offered.next = (self.offered.next + 1) % self.offered.numbers.len().max(1);
            let Some(&number) = self.offered.numbers.get(self.offered.next) else {
                break;
            };
            match self.item(number) {
                Some(item) if item.is_offer_standing() => {}
                item => {
                    if let Some(item) = item {
                        item.is_offered = false;
                        // A read may have found nothing although the kernel had something, perhaps
                        // the end of the stream, whose event was reported before.
                        item.note_news();
                    }
                    self.offered.numbers.swap_remove(self.offered.next);
                    self.enqueue(number);
                }
            }
        }
        !self.offered.numbers.is_empty()
    }
}
