//! What two processes tell each other over the socket of a link.

/// Says which protocol this is; changed with every change of a layout.
const MAGIC: u64 = 0x534c_5648_5348_0001;
/// Bytes of every message.
pub const MESSAGE_BYTES: usize = 64;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// From who connects; with its directory, its request area and its eventfd.
    Hello(Identity),
    /// The answer; with the directory, the response area and an eventfd.
    Welcome(Identity),
    /// With the memory of a region. From here on keys and messages may name it.
    Region { id: u32, bytes: u64 },
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random, of the process's transport; also what lies at `probe`.
    pub nonce: [u64; 2],
    /// An address in the speaker's process where the nonce can be read.
    pub probe: u64,
    /// Whether the speaker can read the listener's memory (`process_vm_readv`).
    pub can_read: bool,
}

impl Message {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let words = match *self {
            Message::Hello(who) => who.words(1),
            Message::Welcome(who) => who.words(2),
            Message::Region { id, bytes } => [MAGIC, 3, u64::from(id), bytes, 0, 0, 0, 0],
        };
        let mut out = [0; MESSAGE_BYTES];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        out
    }

    /// None for anything that is not exactly a message of this version.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        if bytes.len() != MESSAGE_BYTES {
            return None;
        }
        let mut words = [0u64; MESSAGE_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        if words[0] != MAGIC {
            return None;
        }
        let identity = Identity {
            nonce: [words[2], words[3]],
            probe: words[4],
            can_read: words[5] == 1,
        };
        match words[1] {
            1 => Some(Message::Hello(identity)),
            2 => Some(Message::Welcome(identity)),
            3 => Some(Message::Region {
                id: u32::try_from(words[2]).ok()?,
                bytes: words[3],
            }),
            _ => None,
        }
    }
}

impl Identity {
    fn words(&self, kind: u64) -> [u64; 8] {
        let [low, high] = self.nonce;
        let can_read = u64::from(self.can_read);
        [MAGIC, kind, low, high, self.probe, can_read, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_nothing_else_does() {
        let who = Identity {
            nonce: [1, 2],
            probe: 3,
            can_read: true,
        };
        for message in [
            Message::Hello(who),
            Message::Welcome(who),
            Message::Region { id: 7, bytes: 8 },
        ] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            assert_eq!(Message::decode(&bytes[..63]), None);
            let mut wrong = bytes;
            wrong[0] ^= 1;
            assert_eq!(Message::decode(&wrong), None);
            wrong = bytes;
            wrong[8] = 9;
            assert_eq!(Message::decode(&wrong), None);
        }
    }
}
