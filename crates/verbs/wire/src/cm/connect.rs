//! Messages that make and end a connection.

use core::net::Ipv6Addr;

use super::{Data, write};
use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};
use crate::number::{Mtu, Psn, Qpn};

/// The service that a connection is of (IBTA 12.7 and annex A14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Extended reliable connection.
    Xrc = 3,
}

/// A path to the peer (IBTA 12.7). With RoCEv2 the GIDs are IP addresses, IPv4 in
/// its mapped form, and the LIDs are not used (annex A17.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The sender's LID.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's address.
    pub local_gid: Ipv6Addr,
    /// The receiver's address.
    pub remote_gid: Ipv6Addr,
    /// 20 bits.
    pub flow_label: u32,
    /// The static rate's code, 6 bits.
    pub packet_rate: u8,
    /// Type of service.
    pub traffic_class: u8,
    /// Hops.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// 4.096 µs times two to the power of this, 5 bits (IBTA 12.7).
    pub local_ack_timeout: u8,
}

impl Path {
    /// No path: as the alternate one if there is none.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Ipv6Addr::UNSPECIFIED,
        remote_gid: Ipv6Addr::UNSPECIFIED,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: 0,
    };

    fn read(reader: &mut Reader<'_>) -> Self {
        let (local_lid, remote_lid) = (reader.u16(), reader.u16());
        let local_gid = Ipv6Addr::from(reader.array::<16>());
        let remote_gid = Ipv6Addr::from(reader.array::<16>());
        // Flow label 20 bits, reserved 6, packet rate 6.
        let label_and_rate = reader.u32();
        let (traffic_class, hop_limit) = (reader.u8(), reader.u8());
        // Service level 4 bits, subnet local 1, reserved 3.
        let level = reader.u8();
        Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label: label_and_rate >> 12,
            packet_rate: label_and_rate as u8 & 0x3f,
            traffic_class,
            hop_limit,
            sl: level >> 4,
            subnet_local: level & 8 != 0,
            local_ack_timeout: reader.u8() >> 3,
        }
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.u16(self.local_lid);
        writer.u16(self.remote_lid);
        writer.put(&self.local_gid.octets());
        writer.put(&self.remote_gid.octets());
        writer.u32(self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        writer.u8(self.traffic_class);
        writer.u8(self.hop_limit);
        writer.u8(self.sl << 4 | (self.subnet_local as u8) << 3);
        writer.u8(self.local_ack_timeout << 3);
    }
}

/// REQ: asks for a connection (IBTA 12.6.5, table 106). End-to-end contexts, which only reliable
/// datagrams have, are sent as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req<'a> {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// What is asked for ([`super::service_id`]).
    pub service_id: u64,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// For datagram services.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender can answer at a time (IBTA 12.7).
    pub responder_resources: u8,
    /// Those that it wants to have out (IBTA 12.7).
    pub initiator_depth: u8,
    /// How long the receiver may take to answer: 4.096 µs times two to this power, 5 bits.
    pub remote_response_timeout: u8,
    /// The service.
    pub transport: Transport,
    /// The sender gives credits (IBTA 9.7.7.2).
    pub end_to_end_flow_control: bool,
    /// Of the first packet that the sender of the message gets (12.7.31).
    pub starting_psn: Psn,
    /// How long the sender takes to answer, 5 bits.
    pub local_response_timeout: u8,
    /// Of the receiver's requests, 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// Of the path.
    pub path_mtu: Mtu,
    /// Tries for a receiver that is not ready, 3 bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// How often this message is sent at most, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The way.
    pub primary: Path,
    /// Another way, or [`Path::NONE`].
    pub alternate: Path,
    /// For the receiver's program, [`Req::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> Req<'a> {
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 92;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let local_comm_id = reader.u32();
        reader.skip(4);
        let (service_id, local_ca_guid) = (reader.u64(), reader.u64());
        reader.skip(4);
        let local_qkey = reader.u32();
        let local_qpn = Qpn::new(reader.u24());
        let responder_resources = reader.u8();
        reader.skip(3); // local EE context
        let initiator_depth = reader.u8();
        reader.skip(3); // remote EE context
        // Timeout 5 bits, service 2, flow control 1.
        let service = reader.u8();
        let starting_psn = Psn::new(reader.u24());
        // Timeout 5 bits, retries 3.
        let retries = reader.u8();
        let pkey = reader.u16();
        // MTU 4 bits, RDC exists 1, RNR retries 3.
        let mtu = reader.u8();
        // CM retries 4 bits, SRQ 1, extended transport 3.
        let more = reader.u8();
        let transport = match (service >> 1 & 3, more & 7) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            _ => return Err(Error::Reserved("transport service type")),
        };
        let primary = Path::read(&mut reader);
        let alternate = Path::read(&mut reader);
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            local_comm_id,
            service_id,
            local_ca_guid,
            local_qkey,
            local_qpn,
            responder_resources,
            initiator_depth,
            remote_response_timeout: service >> 3,
            transport,
            end_to_end_flow_control: service & 1 != 0,
            starting_psn,
            local_response_timeout: retries >> 3,
            retry_count: retries & 7,
            pkey,
            path_mtu: Mtu::from_code(mtu >> 4)?,
            rnr_retry_count: mtu & 7,
            max_cm_retries: more >> 4,
            srq: more & 8 != 0,
            primary,
            alternate,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        let service = self.remote_response_timeout << 3
            | (self.transport as u8) << 1
            | u8::from(self.end_to_end_flow_control);
        let retries = self.local_response_timeout << 3 | self.retry_count & 7;
        let mtu = self.path_mtu.code() << 4 | self.rnr_retry_count & 7;
        let extended = u8::from(self.transport == Transport::Xrc);
        let more = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        write(|writer| {
            writer.u32(self.local_comm_id);
            writer.zeros(4);
            writer.u64(self.service_id);
            writer.u64(self.local_ca_guid);
            writer.zeros(4);
            writer.u32(self.local_qkey);
            writer.u24(self.local_qpn.get());
            writer.u8(self.responder_resources);
            writer.zeros(3);
            writer.u8(self.initiator_depth);
            writer.zeros(3);
            writer.u8(service);
            writer.u24(self.starting_psn.get());
            writer.u8(retries);
            writer.u16(self.pkey);
            writer.u8(mtu);
            writer.u8(more);
            self.primary.write(writer);
            self.alternate.write(writer);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}

/// REP: accepts (IBTA 12.6.8, table 110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep<'a> {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// For datagram services.
    pub local_qkey: u32,
    /// The sender's queue pair; 0 of an extended reliable connection.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context: of an extended reliable connection, whose sender is the
    /// target, the number of its queue pair (annex A14). Otherwise 0.
    pub local_eecn: Qpn,
    /// Of the first packet that the sender of the message gets (12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// Those that it will have out.
    pub initiator_depth: u8,
    /// How long an acknowledgement may take, 5 bits (IBTA 12.7).
    pub target_ack_delay: u8,
    /// What became of the alternate path, 2 bits (IBTA 12.7).
    pub failover: u8,
    /// The sender gives credits.
    pub end_to_end_flow_control: bool,
    /// 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// [`Rep::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> Rep<'a> {
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 196;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let (local_comm_id, remote_comm_id) = (reader.u32(), reader.u32());
        let local_qkey = reader.u32();
        let local_qpn = Qpn::new(reader.u24());
        reader.skip(1);
        let local_eecn = Qpn::new(reader.u24());
        reader.skip(1);
        let starting_psn = Psn::new(reader.u24());
        reader.skip(1);
        let (responder_resources, initiator_depth) = (reader.u8(), reader.u8());
        // Delay 5 bits, failover 2, flow control 1.
        let delay = reader.u8();
        // RNR retries 3 bits, SRQ 1.
        let retries = reader.u8();
        let local_ca_guid = reader.u64();
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            local_qkey,
            local_qpn,
            local_eecn,
            starting_psn,
            responder_resources,
            initiator_depth,
            target_ack_delay: delay >> 3,
            failover: delay >> 1 & 3,
            end_to_end_flow_control: delay & 1 != 0,
            rnr_retry_count: retries >> 5,
            srq: retries & 0x10 != 0,
            local_ca_guid,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        let delay = self.target_ack_delay << 3
            | (self.failover & 3) << 1
            | u8::from(self.end_to_end_flow_control);
        write(|writer| {
            writer.u32(self.local_comm_id);
            writer.u32(self.remote_comm_id);
            writer.u32(self.local_qkey);
            writer.u24(self.local_qpn.get());
            writer.zeros(1);
            writer.u24(self.local_eecn.get());
            writer.zeros(1);
            writer.u24(self.starting_psn.get());
            writer.zeros(1);
            writer.u8(self.responder_resources);
            writer.u8(self.initiator_depth);
            writer.u8(delay);
            writer.u8(self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
            writer.u64(self.local_ca_guid);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}

/// Messages that have two names and private data.
macro_rules! two_names {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<'a> {
            /// The sender's name for the connection.
            pub local_comm_id: u32,
            /// The receiver's.
            pub remote_comm_id: u32,
            /// `PRIVATE_BYTES` at most.
            pub private_data: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Room for private data.
            pub const PRIVATE_BYTES: usize = 224;

            pub(super) fn parse(data: &'a Data) -> Result<Self> {
                let mut reader = Reader::new(data);
                let message = Self {
                    local_comm_id: reader.u32(),
                    remote_comm_id: reader.u32(),
                    private_data: reader.slice(Self::PRIVATE_BYTES),
                };
                reader.finish()?;
                Ok(message)
            }

            pub(super) fn emit(&self) -> Result<Data> {
                write(|writer| {
                    writer.u32(self.local_comm_id);
                    writer.u32(self.remote_comm_id);
                    writer.padded(self.private_data, Self::PRIVATE_BYTES);
                })
            }
        }
    };
}

two_names! {
    /// RTU: the answer to the answer has come (IBTA 12.6.9, table 111).
    Rtu
}

two_names! {
    /// DREP: agrees to end (IBTA 12.6.11, table 113).
    Drep
}

/// DREQ: ends a connection (IBTA 12.6.10, table 112).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq<'a> {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// [`Dreq::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> Dreq<'a> {
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 220;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let (local_comm_id, remote_comm_id) = (reader.u32(), reader.u32());
        let remote_qpn = Qpn::new(reader.u24());
        reader.skip(1);
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            remote_qpn,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        write(|writer| {
            writer.u32(self.local_comm_id);
            writer.u32(self.remote_comm_id);
            writer.u24(self.remote_qpn.get());
            writer.zeros(1);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}
