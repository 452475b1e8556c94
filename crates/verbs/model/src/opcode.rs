//! Facts about opcodes: one line each (IBTA 9.3, 9.4, 10.8.1; table 44).

use crate::responder::{RecvDone, RemoteOp};
use crate::types::{QpType, WcOpcode, WrOpcode, wc_flags};

/// What the engine and transports need to know about an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub opcode: WrOpcode,
    pub name: &'static str,
    /// Bits of [`type_bit`]: the types that have it.
    pub types: u8,
    /// What it does to memory that a remote key names.
    pub remote: Option<RemoteOp>,
    /// It takes a receive at the peer.
    pub takes_receive: bool,
    /// READ or atomic: an answer with data comes back, fences wait for it, and the local
    /// memory is written.
    pub reads: bool,
    pub atomic: bool,
    pub immediate: bool,
    /// Takes away a key of the peer.
    pub invalidates: bool,
    /// Concerns only this side; the engine does it itself.
    pub local: bool,
    pub may_inline: bool,
    /// The requester's completion.
    pub completion: WcOpcode,
    /// The responder's, when it takes a receive.
    pub receive: Option<WcOpcode>,
}

impl Facts {
    /// How the receive of a message that has arrived whole ends. `imm` means something where there is
    /// immediate data or a key; `byte_len` of a datagram has the GRH's.
    pub fn received(&self, byte_len: u32, imm: u32, solicited: bool) -> RecvDone {
        let (imm, wc_flags) = match (self.immediate, self.invalidates) {
            (true, _) => (imm, wc_flags::WITH_IMM),
            (_, true) => (imm, wc_flags::WITH_INV),
            _ => (0, 0),
        };
        RecvDone {
            opcode: self.receive.unwrap_or(WcOpcode::Recv),
            imm,
            wc_flags,
            solicited,
            ..RecvDone::ok(byte_len)
        }
    }
}

pub const RC: u8 = 1;
pub const UC: u8 = 1 << 1;
pub const UD: u8 = 1 << 2;
pub const XRC: u8 = 1 << 3;

/// The bit of a QP type that can send.
#[inline]
pub const fn type_bit(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::XrcSend => XRC,
        QpType::XrcRecv => 0,
    }
}

/// A set of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcodes(u16);

impl Opcodes {
    pub const NONE: Opcodes = Opcodes(0);
    pub const ALL: Opcodes = Opcodes((1 << TABLE.len()) - 1);

    pub const fn of(opcodes: &[WrOpcode]) -> Opcodes {
        let mut set = Opcodes::NONE;
        let mut at = 0;
        while at < opcodes.len() {
            set.0 |= 1 << opcodes[at] as u32;
            at += 1;
        }
        set
    }

    #[inline]
    pub const fn contains(self, opcode: WrOpcode) -> bool {
        self.0 & 1 << opcode as u32 != 0
    }

    /// Those for which `keeps` holds.
    pub fn filter(self, keeps: impl Fn(&Facts) -> bool) -> Opcodes {
        let kept = TABLE.iter().filter(|facts| self.contains(facts.opcode));
        kept.filter(|facts| keeps(facts))
            .fold(Opcodes::NONE, |set, facts| {
                Opcodes(set.0 | 1 << facts.opcode as u32)
            })
    }
}

const PLAIN: Facts = Facts {
    opcode: WrOpcode::Send,
    name: "",
    types: RC | UC | XRC,
    remote: None,
    takes_receive: false,
    reads: false,
    atomic: false,
    immediate: false,
    invalidates: false,
    local: false,
    may_inline: false,
    completion: WcOpcode::Send,
    receive: None,
};

const SEND: Facts = Facts {
    types: RC | UC | UD | XRC,
    takes_receive: true,
    may_inline: true,
    receive: Some(WcOpcode::Recv),
    ..PLAIN
};

const ATOMIC: Facts = Facts {
    types: RC | XRC,
    remote: Some(RemoteOp::Atomic),
    reads: true,
    atomic: true,
    ..PLAIN
};

/// In the order of the opcodes' numbers.
pub const TABLE: [Facts; 10] = [
    Facts {
        opcode: WrOpcode::RdmaWrite,
        name: "RDMA_WRITE",
        remote: Some(RemoteOp::Write),
        may_inline: true,
        completion: WcOpcode::RdmaWrite,
        ..PLAIN
    },
    Facts {
        opcode: WrOpcode::RdmaWriteWithImm,
        name: "RDMA_WRITE_WITH_IMM",
        remote: Some(RemoteOp::Write),
        takes_receive: true,
        immediate: true,
        may_inline: true,
        completion: WcOpcode::RdmaWrite,
        receive: Some(WcOpcode::RecvRdmaWithImm),
        ..PLAIN
    },
    Facts {
        opcode: WrOpcode::Send,
        name: "SEND",
        ..SEND
    },
    Facts {
        opcode: WrOpcode::SendWithImm,
        name: "SEND_WITH_IMM",
        immediate: true,
        ..SEND
    },
    Facts {
        opcode: WrOpcode::RdmaRead,
        name: "RDMA_READ",
        types: RC | XRC,
        remote: Some(RemoteOp::Read),
        reads: true,
        completion: WcOpcode::RdmaRead,
        ..PLAIN
    },
    Facts {
        opcode: WrOpcode::AtomicCmpAndSwp,
        name: "ATOMIC_CMP_AND_SWP",
        completion: WcOpcode::CompSwap,
        ..ATOMIC
    },
    Facts {
        opcode: WrOpcode::AtomicFetchAndAdd,
        name: "ATOMIC_FETCH_AND_ADD",
        completion: WcOpcode::FetchAdd,
        ..ATOMIC
    },
    Facts {
        opcode: WrOpcode::LocalInv,
        name: "LOCAL_INV",
        local: true,
        completion: WcOpcode::LocalInv,
        ..PLAIN
    },
    Facts {
        opcode: WrOpcode::BindMw,
        name: "BIND_MW",
        local: true,
        completion: WcOpcode::BindMw,
        ..PLAIN
    },
    Facts {
        opcode: WrOpcode::SendWithInv,
        name: "SEND_WITH_INV",
        types: RC | XRC,
        invalidates: true,
        ..SEND
    },
];

/// The facts of an opcode.
#[inline]
pub const fn facts(opcode: WrOpcode) -> &'static Facts {
    const TABLE_REF: &[Facts; 10] = &TABLE;
    &TABLE_REF[opcode as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn every_line_is_at_its_number() {
        for (number, facts) in TABLE.iter().enumerate() {
            assert_eq!(facts.opcode as usize, number);
        }
        assert_eq!(TABLE.len(), WrOpcode::ALL.len());
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let mut text = String::new();
        for f in &TABLE {
            let types: String = [(RC, "rc "), (UC, "uc "), (UD, "ud "), (XRC, "xrc ")]
                .iter()
                .filter(|(bit, _)| f.types & bit != 0)
                .map(|(_, name)| *name)
                .collect();
            let words: String = [
                (f.takes_receive, "receive "),
                (f.reads, "reads "),
                (f.atomic, "atomic "),
                (f.immediate, "imm "),
                (f.invalidates, "inv "),
                (f.local, "local "),
                (f.may_inline, "inline "),
            ]
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| *word)
            .collect();
            let remote = f.remote.map_or("-".into(), |op| format!("{op:?}"));
            let receive = f.receive.map_or("-".into(), |op| format!("{op:?}"));
            let name = f.name;
            let completion = f.completion;
            writeln!(
                text,
                "{name}: {types}| {remote} | {words}| {completion:?} | {receive}"
            )
            .unwrap();
        }
        assert_eq!(text, include_str!("snapshots/opcodes.txt"), "{text}");
    }
}
