//! Bytes of the stream that have come and were not taken yet.

use sluice_wire::iwarp::fpdu;

/// Room for heads and small messages: as many as one call of the kernel brings cheaply.
const BYTES: usize = 64 << 10;

/// A buffer that is filled behind and emptied in front.
#[derive(Debug)]
pub struct Staged {
    bytes: Box<[u8]>,
    front: usize,
    back: usize,
}

impl Staged {
    /// With these bytes in it. `whole`: a frame is taken only when all of it is there.
    pub fn new(rest: &[u8], whole: bool) -> Self {
        let room = if whole {
            BYTES + fpdu::BYTES_MAX
        } else {
            BYTES
        };
        // Not touched before it is used, so that idle connections cost no memory.
        let mut bytes = vec![0; room.max(rest.len())].into_boxed_slice();
        if let Some(place) = bytes.get_mut(..rest.len()) {
            place.copy_from_slice(rest);
        }
        Self {
            bytes,
            front: 0,
            back: rest.len(),
        }
    }

    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.front..self.back).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.front == self.back
    }

    /// So many bytes from the front were taken.
    pub fn taken(&mut self, bytes: usize) {
        self.front = (self.front + bytes).min(self.back);
        if self.is_empty() {
            (self.front, self.back) = (0, 0);
        }
    }

    /// Room behind. Never empty while the front is a frame that is not whole.
    pub fn room(&mut self) -> &mut [u8] {
        if self.front > 0 && self.bytes.len() - self.back < self.bytes.len() / 2 {
            self.bytes.copy_within(self.front..self.back, 0);
            self.back -= self.front;
            self.front = 0;
        }
        self.bytes.get_mut(self.back..).unwrap_or_default()
    }

    /// So many bytes have come into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.back = (self.back + bytes).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_stays_in_front() {
        let mut staged = Staged::new(b"abc", false);
        assert_eq!(staged.bytes(), b"abc");
        staged.taken(2);
        let room = staged.room();
        room[..3].copy_from_slice(b"def");
        staged.filled(3);
        assert_eq!(staged.bytes(), b"cdef");
        staged.taken(9);
        assert!(staged.is_empty());
        assert_eq!(staged.room().len(), BYTES);
    }

    #[test]
    fn there_is_room_for_the_rest_of_a_frame() {
        let mut staged = Staged::new(b"", true);
        // A frame begins anywhere in a full buffer; all of the longest one must fit behind.
        let all = staged.room().len();
        staged.filled(all);
        staged.taken(all - 7);
        assert!(staged.room().len() + 7 >= fpdu::BYTES_MAX);
        assert_eq!(staged.bytes().len(), 7);
    }
}
