//! What Wireshark's dissectors make of our iWARP: the start of a connection, and a segment of every
//! kind that they know.

mod dissect;

use dissect::{Dissected, dissect, field, text};
use sluice_wire::capture::Format;
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::iwarp::message::{AtomicRequest, AtomicResponse, Operation, ReadRequest};
use sluice_wire::iwarp::terminate::{Culprit, Mpa, Rdmap, TaggedError, UntaggedError};
use sluice_wire::iwarp::{
    Cause, Enhanced, Header, Kind, Revision, Role, Startup, Tagged, Terminate, Untagged, fpdu,
};
use sluice_wire::{Ecn, ipv4};

/// A TCP connection as a capture shows it.
struct Capture {
    frames: Vec<Vec<u8>>,
    /// What each end has sent.
    sent: [u32; 2],
}

impl Capture {
    fn new() -> Self {
        Self {
            frames: Vec::new(),
            sent: [1000, 5000],
        }
    }

    /// One segment of TCP, from the initiator (0) or the responder (1).
    fn add(&mut self, from: usize, bytes: &[u8]) {
        let ports: [u16; 2] = [40_000, 10_000];
        let hosts = [[192, 0, 2, 1], [192, 0, 2, 2]];
        let other = 1 - from;
        let mut tcp = Vec::new();
        tcp.extend(ports[from].to_be_bytes());
        tcp.extend(ports[other].to_be_bytes());
        tcp.extend(self.sent[from].to_be_bytes());
        tcp.extend(self.sent[other].to_be_bytes());
        // Five words of header; ACK, PSH; a window; no checksum, no urgent data.
        tcp.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(bytes);
        self.sent[from] += bytes.len() as u32;
        let ethernet = ethernet::Header {
            destination: Mac([2, 0, 0, 0, 0, other as u8]),
            source: Mac([2, 0, 0, 0, 0, from as u8]),
            vlan: None,
            ethertype: EtherType::Ipv4,
        };
        let ip = ipv4::Header {
            dscp: 0,
            ecn: Ecn::NotCapable,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: 6,
            source: hosts[from].into(),
            destination: hosts[other].into(),
            payload_bytes: tcp.len() as u16,
        };
        let mut frame = vec![0; 14];
        ethernet.emit(&mut frame).unwrap();
        frame.extend(ip.emit().unwrap());
        frame.extend(tcp);
        self.frames.push(frame);
    }

    fn start(&mut self, startup: &Startup<'_>) {
        let mut buffer = [0; Startup::BYTES_MAX];
        let used = startup.emit(&mut buffer).unwrap();
        self.add(usize::from(startup.role == Role::Reply), &buffer[..used]);
    }

    fn segment(&mut self, from: usize, kind: Kind, payload: &[u8], crc: bool) {
        let header = Header { last: true, kind };
        let mut ulpdu = vec![0; header.bytes()];
        header.emit(&mut ulpdu).unwrap();
        ulpdu.extend(payload);
        let mut buffer = vec![0; fpdu::bytes(ulpdu.len())];
        fpdu::emit(&ulpdu, crc, &mut buffer).unwrap();
        self.add(from, &buffer);
    }
}

fn startup(role: Role, crc: bool) -> Startup<'static> {
    Startup {
        role,
        markers: false,
        crc,
        reject: false,
        long_frames: false,
        revision: Revision::Two(Some(Enhanced {
            ird: 16,
            ord: 32,
            peer_to_peer: true,
            empty_rtr: false,
            write_rtr: true,
            read_rtr: false,
        })),
        private_data: b"hello",
    }
}

const PLACE: Untagged = Untagged {
    msn: 0x0102_0304,
    offset: 0x0506,
};
const TAGGED: Tagged = Tagged {
    stag: 0xa1b2_c3d4,
    offset: 0x0102_0304_0506_0708,
};
const READ: ReadRequest = ReadRequest {
    sink_stag: 0x1111_2222,
    sink_offset: 0x3333_4444_5555_6666,
    length: 4096,
    source_stag: 0x7777_8888,
    source_offset: 0x1234_5678_9abc_def0,
};

fn assert_field(packet: &Dissected, name: &str, wanted: &str) {
    assert_eq!(field(packet, name), wanted, "{name} in {packet:?}");
}

#[test]
fn the_start_and_every_kind_of_segment() {
    for crc in [false, true] {
        let mut capture = Capture::new();
        capture.start(&startup(Role::Request, crc));
        capture.start(&startup(Role::Reply, crc));
        let kinds = [
            (Kind::Write(TAGGED), vec![0x42; 1001]),
            (Kind::ReadResponse(TAGGED), vec![0x42; 1000]),
            (Kind::ReadRequest(PLACE), READ.emit().to_vec()),
            // Shorter ones are read as messages of RPC over RDMA that are cut.
            (send(false, None), vec![0x42; 41]),
            (send(false, Some(7)), vec![0x42; 42]),
            (send(true, None), vec![0x42; 43]),
            (send(true, Some(7)), Vec::new()),
        ];
        for (kind, payload) in &kinds {
            capture.segment(0, *kind, payload, crc);
        }
        let test = format!("iwarp-kinds-{crc}");
        let Some(packets) = dissect(&test, Format::PcapNg, &capture.frames) else {
            return;
        };
        for packet in &packets {
            assert_field(packet, "_ws.malformed", "");
        }
        for (packet, key) in packets.iter().zip(["req", "rep"]) {
            assert!(packet.contains_key(&format!("iwarp_mpa.key.{key}")));
            assert_field(packet, "iwarp_mpa.marker_flag", "0");
            assert_field(packet, "iwarp_mpa.crc_flag", if crc { "1" } else { "0" });
            assert_field(packet, "iwarp_mpa.rev", "2");
            assert_field(packet, "iwarp_mpa.pdlength", "9");
        }
        for (packet, (kind, payload)) in packets[2..].iter().zip(&kinds) {
            let header = Header {
                last: true,
                kind: *kind,
            };
            let ulpdu = header.bytes() + payload.len();
            assert_field(packet, "iwarp_mpa.ulpdulength", &ulpdu.to_string());
            assert_field(packet, "iwarp_ddp.last_flag", "1");
            assert_field(packet, "iwarp_ddp.dv", "1");
            assert_field(packet, "iwarp_rdma.version", "1");
            assert_field(
                packet,
                "iwarp_rdma.opcode",
                &format!("0x{:02x}", kind.opcode()),
            );
            match kind.untagged() {
                None => {
                    assert_field(packet, "iwarp_ddp.tagged_flag", "1");
                    assert_field(packet, "iwarp_ddp.stag", "0xa1b2c3d4");
                    assert_field(packet, "iwarp_ddp.tagged_offset", "0x0102030405060708");
                }
                Some((queue, _)) => {
                    assert_field(packet, "iwarp_ddp.tagged_flag", "0");
                    assert_field(packet, "iwarp_ddp.qn", &queue.to_string());
                    assert_field(packet, "iwarp_ddp.msn", &PLACE.msn.to_string());
                    assert_field(packet, "iwarp_ddp.mo", &PLACE.offset.to_string());
                }
            }
            if let Kind::Send {
                invalidate: Some(stag),
                ..
            } = kind
            {
                assert_field(packet, "iwarp_rdma.inval_stag", &stag.to_string());
            }
            if matches!(kind, Kind::ReadRequest(_)) {
                assert_field(packet, "iwarp_rdma.sinkstag", "0x11112222");
                assert_field(packet, "iwarp_rdma.sinkto", "0x3333444455556666");
                assert_field(packet, "iwarp_rdma.rdmardsz", "4096");
                assert_field(packet, "iwarp_rdma.srcstag", "0x77778888");
                assert_field(packet, "iwarp_rdma.srcto", "0x123456789abcdef0");
            }
        }
        let text = text(&format!("{test}-text"), Format::PcapNg, &capture.frames).unwrap();
        let good = text.matches("(Good CRC32)").count();
        assert_eq!(good, if crc { kinds.len() } else { 0 });
        assert!(!text.contains("Bad CRC32"), "{text}");
    }
}

/// That the check of the sums above could fail.
#[test]
fn a_wrong_crc_is_seen() {
    let mut capture = Capture::new();
    capture.start(&startup(Role::Request, true));
    capture.start(&startup(Role::Reply, true));
    // CRCs were agreed on, and zeros are sent.
    capture.segment(0, Kind::Write(TAGGED), &[1; 20], false);
    let Some(text) = text("iwarp-crc", Format::PcapNg, &capture.frames) else {
        return;
    };
    assert!(text.contains("Bad CRC32"), "{text}");
}

fn send(solicited: bool, invalidate: Option<u32>) -> Kind {
    Kind::Send {
        place: PLACE,
        solicited,
        invalidate,
    }
}

#[test]
fn atomics() {
    let mut capture = Capture::new();
    capture.start(&startup(Role::Request, false));
    capture.start(&startup(Role::Reply, false));
    let request = |operation| AtomicRequest {
        id: 77,
        stag: 1234,
        offset: 5678,
        operation,
    };
    let add = request(Operation::FetchAdd { add: 11, mask: 12 });
    let compare = request(Operation::CompareSwap {
        swap: 13,
        mask: 14,
        compare: 15,
        compare_mask: 16,
    });
    let kind = Kind::AtomicRequest(PLACE);
    capture.segment(0, kind, &add.emit(), false);
    capture.segment(0, kind, &compare.emit(), false);
    let response = AtomicResponse {
        id: 77,
        original: 99,
    };
    capture.segment(1, Kind::AtomicResponse(PLACE), &response.emit(), false);
    let Some(packets) = dissect("iwarp-atomics", Format::Pcap, &capture.frames) else {
        return;
    };
    let [_, _, add, compare, response] = &packets[..] else {
        panic!("five packets");
    };
    for packet in [add, compare, response] {
        assert_field(packet, "_ws.malformed", "");
    }
    for packet in [add, compare] {
        assert_field(packet, "iwarp_ddp.qn", "1");
        assert_field(packet, "iwarp_rdma.atomic.request_identifier", "77");
        assert_field(packet, "iwarp_rdma.atomic.remote_stag", "1234");
        assert_field(packet, "iwarp_rdma.atomic.remote_tagged_offset", "5678");
    }
    assert_field(add, "iwarp_rdma.atomic.opcode", "0");
    assert_field(add, "iwarp_rdma.atomic.add_data", "11");
    assert_field(compare, "iwarp_rdma.atomic.opcode", "2");
    assert_field(compare, "iwarp_rdma.atomic.swap_data", "13");
    assert_field(compare, "iwarp_rdma.atomic.compare_data", "15");
    assert_field(response, "iwarp_ddp.qn", "3");
    assert_field(
        response,
        "iwarp_rdma.atomic.original_request_identifier",
        "77",
    );
    assert_field(
        response,
        "iwarp_rdma.atomic.original_remote_data_value",
        "99",
    );
}

#[test]
fn terminate_messages() {
    let mut tagged = vec![0; 14];
    let write = Header {
        last: true,
        kind: Kind::Write(TAGGED),
    };
    write.emit(&mut tagged).unwrap();
    let causes = [
        (
            Cause::Protection(Rdmap::Bounds),
            "0x00",
            "rdma",
            "0x01",
            "rdma",
            "0x01",
        ),
        (
            Cause::Operation(Rdmap::Opcode),
            "0x00",
            "rdma",
            "0x02",
            "rdma",
            "0x06",
        ),
        (
            Cause::Tagged(TaggedError::Wrap),
            "0x01",
            "ddp",
            "0x01",
            "ddp_tagged",
            "0x03",
        ),
        (
            Cause::Untagged(UntaggedError::NoBuffer),
            "0x01",
            "ddp",
            "0x02",
            "ddp_untagged",
            "0x02",
        ),
        (Cause::Mpa(Mpa::Crc), "0x02", "llp", "0x00", "llp", "0x02"),
    ];
    let mut capture = Capture::new();
    capture.start(&startup(Role::Request, false));
    capture.start(&startup(Role::Reply, false));
    for (cause, ..) in causes {
        // The dissector takes the header for a tagged one at DDP's tagged errors only.
        let culprit = matches!(cause, Cause::Tagged(_)).then(|| Culprit::new(&tagged, 99));
        let message = Terminate {
            cause,
            culprit: culprit.flatten(),
        };
        let mut buffer = [0; Terminate::BYTES_MAX];
        let used = message.emit(&mut buffer).unwrap();
        capture.segment(1, Kind::Terminate(PLACE), &buffer[..used], false);
    }
    let Some(packets) = dissect("iwarp-terminate", Format::PcapNg, &capture.frames) else {
        return;
    };
    for (packet, (cause, layer, kind_of, kind, code_of, code)) in packets[2..].iter().zip(causes) {
        assert_field(packet, "_ws.malformed", "");
        assert_field(packet, "iwarp_ddp.qn", "2");
        assert_field(packet, "iwarp_rdma.term_layer", layer);
        assert_field(packet, &format!("iwarp_rdma.term_etype_{kind_of}"), kind);
        assert_field(packet, &format!("iwarp_rdma.term_errcode_{code_of}"), code);
        let with = matches!(cause, Cause::Tagged(_));
        assert_eq!(packet.contains_key("iwarp_rdma.term_ddp_h"), with);
        if with {
            let header: Vec<String> = tagged.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_field(packet, "iwarp_rdma.term_ddp_h", &header.join(":"));
            assert_field(packet, "iwarp_rdma.term_ddp_seg_len", "00:63");
        }
    }
}
