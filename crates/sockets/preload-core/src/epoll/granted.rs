//! Connections whose ring sluiced grants to a program on another host: while one is there nobody may
//! sleep. Grants last long, so they are not looked at in each round as writes in flight are: what
//! comes sets the lane's ready bit, and a few in each round are asked whether their grant has ended.

/// So many are asked in one round.
pub const CHECKED: usize = 4;

/// The registrations with a grant, and whose turn it is to be asked.
#[derive(Default)]
pub(super) struct Granted {
    numbers: Vec<u32>,
    next: usize,
}

impl Granted {
    /// None.
    pub const fn new() -> Self {
        Self {
            numbers: Vec::new(),
            next: 0,
        }
    }

    /// All of them, and perhaps some whose grant has ended.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// One more, which is not among them yet.
    pub fn add(&mut self, number: u32) {
        self.numbers.push(number);
    }

    /// The next one to be asked, in turn.
    pub fn take_turn(&mut self) -> Option<u32> {
        self.next = (self.next + 1) % self.numbers.len().max(1);
        self.numbers.get(self.next).copied()
    }

    /// The grant of the one whose turn it is has ended.
    pub fn drop_turn(&mut self) {
        self.numbers.swap_remove(self.next);
    }

    /// The registration is gone.
    pub fn forget(&mut self, number: u32) {
        self.numbers.retain(|known| *known != number);
    }
}
