//! What two stream rsockets say to each other (docs/rsocket of librdmacm): private data at
//! connection, and 32 bits of immediate data with every RDMA write.

/// The layout of the private data and of scatter list entries that this side writes.
pub const VERSION: u8 = 1;
/// The sender is big-endian.
const FLAG_NETWORK_ORDER: u8 = 1;
/// The sender has a table for IO mappings.
const FLAG_IOMAP: u8 = 2;

/// Halves of a receive buffer.
pub const TABLE_ENTRIES: usize = 2;

pub const CONN_DATA_LEN: usize = 40;
/// A buffer that the peer may write: 64-bit address, 32-bit key and length.
pub const SGE_LEN: usize = 16;
/// An IO mapping: its 64-bit offset, then the buffer.
pub const IOMAP_LEN: usize = 24;

const LOCAL_FLAGS: u8 = if cfg!(target_endian = "big") {
    FLAG_NETWORK_ORDER
} else {
    0
};

/// A buffer of the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    pub addr: u64,
    pub key: u32,
    pub length: u32,
}

impl Buffer {
    /// As it stands in a table, in this host's byte order: both ends have the same.
    pub fn emit(&self) -> [u8; SGE_LEN] {
        let mut bytes = [0; SGE_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.length.to_ne_bytes());
        bytes
    }

    /// Whether no address in it is beyond the last one there is.
    pub fn is_possible(&self) -> bool {
        self.addr.checked_add(u64::from(self.length)).is_some()
    }

    pub fn parse(bytes: &[u8; SGE_LEN]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            l0,
            l1,
            l2,
            l3,
        ] = *bytes;
        Self {
            addr: u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_ne_bytes([k0, k1, k2, k3]),
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
        }
    }
}

/// What each side says when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnData {
    /// Data messages that may be sent before more are granted.
    pub credits: u16,
    /// Entries in the table of IO mappings.
    pub iomap_count: u8,
    /// The table of receive buffers, with its number of entries as length, that the peer
    /// writes to; its IO mappings follow it.
    pub table: Buffer,
    /// The first receive buffer.
    pub first: Buffer,
}

impl ConnData {
    pub fn emit(&self) -> [u8; CONN_DATA_LEN] {
        let mut bytes = [0; CONN_DATA_LEN];
        bytes[0] = VERSION;
        bytes[1] = LOCAL_FLAGS | if self.iomap_count > 0 { FLAG_IOMAP } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.iomap_count;
        for (at, buffer) in [(8, &self.table), (24, &self.first)] {
            bytes[at..at + 8].copy_from_slice(&buffer.addr.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&buffer.key.to_be_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&buffer.length.to_be_bytes());
        }
        bytes
    }

    /// `None` for anything but the private data of an rsocket of this version and byte
    /// order, and for memory that cannot be. Bytes behind it are the padding of the message.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<CONN_DATA_LEN>()?;
        if bytes[0] != VERSION || (bytes[1] ^ LOCAL_FLAGS) & FLAG_NETWORK_ORDER != 0 {
            return None;
        }
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let buffer = |at: usize| Buffer {
            addr: u64::from(word(at)) << 32 | u64::from(word(at + 4)),
            key: word(at + 8),
            length: word(at + 12),
        };
        let data = Self {
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomap_count: if bytes[1] & FLAG_IOMAP != 0 {
                bytes[7]
            } else {
                0
            },
            table: buffer(8),
            first: buffer(24),
        };
        let table_bytes = TABLE_ENTRIES * SGE_LEN + usize::from(data.iomap_count) * IOMAP_LEN;
        let is_possible =
            data.table.addr.checked_add(table_bytes as u64).is_some() && data.first.is_possible();
        // There are always two halves of a receive buffer.
        (data.table.length == TABLE_ENTRIES as u32 && is_possible).then_some(data)
    }
}

/// A message in immediate data: three bits of kind, 29 of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes stand in the receive buffer.
    Data(u32),
    /// Data messages may be sent up to this sequence number; the table may have changed.
    Credits(u16),
    /// The entry of the table of IO mappings has changed.
    IoMap(u8),
    /// The peer will send nothing more and take nothing more.
    Disconnect,
    KeepAlive,
    /// The peer will send nothing more.
    Shutdown,
}

const VALUE_BITS: u32 = 29;
pub const DATA_LEN_MAX: u32 = (1 << VALUE_BITS) - 1;

impl Message {
    pub fn emit(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(len) => (0, len & DATA_LEN_MAX),
            Self::Credits(limit) => (4, u32::from(limit)),
            Self::IoMap(index) => (6, u32::from(index)),
            Self::Disconnect => (7, 0),
            Self::KeepAlive => (7, 1),
            Self::Shutdown => (7, 2),
        };
        kind << VALUE_BITS | value
    }

    /// `None` for what this version does not know.
    pub fn parse(word: u32) -> Option<Self> {
        let value = word & DATA_LEN_MAX;
        match word >> VALUE_BITS {
            0 => Some(Self::Data(value)),
            4 => u16::try_from(value).ok().map(Self::Credits),
            6 => u8::try_from(value).ok().map(Self::IoMap),
            7 => match value {
                0 => Some(Self::Disconnect),
                1 => Some(Self::KeepAlive),
                2 => Some(Self::Shutdown),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        for message in [
            Message::Data(0),
            Message::Data(DATA_LEN_MAX),
            Message::Credits(u16::MAX),
            Message::IoMap(255),
            Message::Disconnect,
            Message::KeepAlive,
            Message::Shutdown,
        ] {
            assert_eq!(Message::parse(message.emit()), Some(message));
        }
        for word in [
            1 << 29,
            2 << 29,
            3 << 29,
            5 << 29,
            4 << 29 | 0x1_0000,
            7 << 29 | 3,
        ] {
            assert_eq!(Message::parse(word), None, "{word:#x}");
        }
    }

    #[test]
    fn conn_data_comes_back_and_is_checked() {
        let buffer = |length| Buffer {
            addr: 0x1122_3344_5566_7788,
            key: 0x99aa_bbcc,
            length,
        };
        let data = ConnData {
            credits: 384,
            iomap_count: 3,
            table: buffer(2),
            first: buffer(65536),
        };
        let mut bytes = data.emit().to_vec();
        assert_eq!(ConnData::parse(&bytes), Some(data));
        assert_eq!(ConnData::parse(&bytes[..39]), None);
        bytes.resize(56, 0);
        assert_eq!(ConnData::parse(&bytes), Some(data));
        bytes[1] ^= 1;
        assert_eq!(ConnData::parse(&bytes), None, "other byte order");
        bytes[1] ^= 1;
        bytes[0] = 2;
        assert_eq!(ConnData::parse(&bytes), None, "other version");
        let end = |room| Buffer {
            addr: u64::MAX - room,
            ..data.first
        };
        let table = |room| ConnData {
            table: Buffer {
                length: 2,
                ..end(room)
            },
            ..data
        };
        let first = |room| ConnData {
            first: end(room),
            ..data
        };
        // Two entries of 16 bytes and three of 24; a buffer of 65,536.
        for possible in [table(104), first(65_536)] {
            assert_eq!(ConnData::parse(&possible.emit()), Some(possible));
        }
        for impossible in [table(103), table(0), first(65_535), first(0)] {
            assert_eq!(ConnData::parse(&impossible.emit()), None);
        }
        assert_eq!(Buffer::parse(&buffer(7).emit()), buffer(7));
    }
}
