//! What requests and answers look like in the rings of a link.

/// Sequence numbers have 24 bits.
pub const SEQUENCE_MASK: u32 = 0xFF_FFFF;
/// Pieces of a described message at most.
pub const PIECES_MAX: usize = 40;

/// Kinds of requests.
pub mod request {
    /// `immediate`: immediate data or key; `argument`: SRQ number, and above it the bytes of
    /// the whole message. The payload is data, or with `DESCRIBED` a list of pieces.
    pub const SEND: u8 = 1;
    /// `argument`: remote address of the whole; the payload starts with a [`super::Span`].
    pub const WRITE: u8 = 2;
    /// As WRITE; the payload behind the span is room for the answer.
    pub const READ: u8 = 3;
    /// `argument`: remote address; the payload is a [`super::Atomic`].
    pub const ATOMIC: u8 = 4;
    /// The payload starts with a [`super::Datagram`].
    pub const DATAGRAM: u8 = 5;
}

/// Kinds of answers. `target`, `sequence` and `short` are those of the request (`origin`).
pub mod answer {
    /// No receive; `immediate` is the code of the time to wait.
    pub const RNR: u8 = 1;
    /// Not carried out, because the queue pair is not there, or something before it was not.
    pub const NOT_READY: u8 = 2;
    /// Refused for good; `immediate` says why.
    pub const REFUSED: u8 = 3;
    /// The payload is what was read; `immediate` is where in the whole.
    pub const DATA: u8 = 4;
    /// `argument` is the value that was there.
    pub const VALUE: u8 = 5;
}

pub mod flags {
    pub const FIRST: u8 = 1;
    pub const LAST: u8 = 1 << 1;
    pub const SOLICITED: u8 = 1 << 2;
    pub const IMMEDIATE: u8 = 1 << 3;
    pub const INVALIDATE: u8 = 1 << 4;
    /// The payload says where in the sender's memory the data is.
    pub const DESCRIBED: u8 = 1 << 5;
    /// WRITE with immediate data whose bytes were written already.
    pub const WRITTEN: u8 = 1 << 6;
}

macro_rules! plain {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type),+ }

        impl $name {
            /// Length on the wire.
            pub const BYTES: usize = 0 $(+ size_of::<$type>())+;

            pub fn encode(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                let mut at = 0;
                $(
                    let bytes = self.$field.to_ne_bytes();
                    out[at..at + bytes.len()].copy_from_slice(&bytes);
                    at += bytes.len();
                )+
                debug_assert_eq!(at, Self::BYTES);
                out
            }

            pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
                let mut at = 0;
                $(
                    let mut field = [0; size_of::<$type>()];
                    field.copy_from_slice(&bytes[at..at + size_of::<$type>()]);
                    at += size_of::<$type>();
                    let $field = <$type>::from_ne_bytes(field);
                )+
                debug_assert_eq!(at, Self::BYTES);
                Self { $($field),+ }
            }
        }
    };
}

plain! {
    /// A part of an RDMA operation.
    Span {
        rkey: u32,
        /// Bytes of the whole operation.
        total: u32,
        /// Where this part starts, bytes.
        offset: u32,
        /// READ: bytes of this part.
        len: u32,
        srqn: u32,
        reserved: u32,
    }
}

plain! {
    /// An atomic operation on 8 bytes.
    Atomic {
        rkey: u32,
        /// 1: compare and swap; 0: add.
        swaps: u32,
        compare_add: u64,
        swap: u64,
        srqn: u32,
        reserved: u32,
    }
}

plain! {
    /// Where a piece of a described message lies.
    Piece {
        address: u64,
        len: u32,
        /// The sender's region with these bytes, or 0.
        region: u32,
        region_offset: u64,
    }
}

plain! {
    /// In front of a datagram's bytes.
    Datagram {
        qkey: u32,
        class_and_label: u32,
        sgid: u128,
        dgid: u128,
        hop_limit: u32,
        sl: u32,
    }
}

/// Why a request was refused, as a number.
pub fn reason_code(reason: sluice_verbs::NakReason) -> u32 {
    match reason {
        sluice_verbs::NakReason::RemoteAccess => 1,
        sluice_verbs::NakReason::InvalidRequest => 2,
        sluice_verbs::NakReason::RemoteOperation => 3,
    }
}

/// The reason of a number from a peer; an unknown one is the peer's fault.
pub fn reason(code: u32) -> sluice_verbs::NakReason {
    match code {
        1 => sluice_verbs::NakReason::RemoteAccess,
        2 => sluice_verbs::NakReason::InvalidRequest,
        _ => sluice_verbs::NakReason::RemoteOperation,
    }
}

/// The time to wait after an RNR answer, microseconds (IBTA table 45).
pub fn rnr_us(code: u32) -> u64 {
    const HUNDREDTHS_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_MS[code as usize % 32] * 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_survive() {
        let piece = Piece {
            address: 1 << 40,
            len: 2,
            region: 3,
            region_offset: 4,
        };
        assert_eq!(Piece::BYTES, 24);
        assert_eq!(Piece::decode(&piece.encode()), piece);
        for reason_in in sluice_verbs::NakReason::ALL {
            assert_eq!(reason(reason_code(*reason_in)), *reason_in);
        }
        assert_eq!(rnr_us(1), 10);
        assert_eq!(rnr_us(0), 655_360);
    }
}
