//! Where the next packet will be, before its descriptor says so.
//!
//! Who polls finds a packet by three reads, each of which waits for the other processor's cache:
//! the ring's number, the descriptor, the packet. In copy mode the kernel takes chunks in the order in
//! which it got them, so the last two need not wait for each other. This is a guess: drivers and
//! packets that the kernel dropped change the order, and the next packet sets it right.

/// In which order the kernel got the chunks.
#[derive(Debug)]
pub struct Order {
    chunk_bytes: usize,
    /// Of each chunk: which one the kernel got behind it.
    behind: Box<[u32]>,
    /// Which one it got last.
    given: usize,
    /// Where the next packet will begin.
    next: Option<usize>,
}

impl Order {
    /// The kernel has got so many chunks of that size, the first one first.
    pub fn new(chunks: usize, chunk_bytes: usize) -> Self {
        Self {
            chunk_bytes,
            behind: (1..=chunks as u32).collect(),
            given: chunks.saturating_sub(1),
            next: None,
        }
    }

    /// The kernel gets a chunk, which begins there.
    pub fn give(&mut self, chunk: u64) {
        let number = chunk as usize / self.chunk_bytes;
        if let Some(behind) = self.behind.get_mut(self.given) {
            *behind = number as u32;
        }
        self.given = number;
    }

    /// A packet has come that begins there.
    pub fn come(&mut self, at: usize) {
        // Now: it may be given again before the next one comes.
        let behind = self.behind.get(at / self.chunk_bytes);
        self.next = behind.map(|chunk| *chunk as usize * self.chunk_bytes + at % self.chunk_bytes);
    }

    /// Where the next one will begin.
    pub const fn next(&self) -> Option<usize> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_in_the_order_in_which_they_were_given() {
        let mut order = Order::new(4, 2048);
        assert_eq!(
            order.next(),
            None,
            "where a packet begins in its chunk is not known"
        );
        order.come(256);
        assert_eq!(order.next(), Some(2048 + 256));
        order.come(2048 + 256);
        // They go back the other way round.
        order.give(2048);
        order.give(0);
        let came: Vec<_> = (0..4)
            .map(|_| {
                let next = order.next().unwrap();
                order.come(next);
                next / 2048
            })
            .collect();
        assert_eq!(came, [2, 3, 1, 0]);
    }

    #[test]
    fn another_order_is_followed_and_nonsense_is_no_place() {
        let mut order = Order::new(4, 2048);
        order.come(2 * 2048 + 100);
        assert_eq!(order.next(), Some(3 * 2048 + 100));
        order.come(usize::MAX);
        assert_eq!(order.next(), None);
        order.give(u64::MAX);
        order.give(0);
        order.come(3 * 2048);
        assert!(order.next().is_some());
    }
}
