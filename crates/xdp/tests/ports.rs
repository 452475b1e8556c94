//! Packets between two ports: every size, both IP versions, full rings.

mod common;

use common::{Net, QPN, can_run, check, message_bytes, send, until};
use sluice_packet::{Port, SendError};
use sluice_wire::Ecn;
use sluice_xdp::{Options, XdpPort};

fn flush(port: &mut XdpPort) {
    until("everything to be sent", || port.flush());
}

#[test]
fn every_size_over_both_ip_versions() {
    if !can_run("every_size_over_both_ip_versions") {
        return;
    }
    for (mtu, payload_max) in [(1500, 1440), (4200, 4096), (9000, 4096)] {
        let net = Net::new(mtu);
        let (steering, mut a) = net.a.open_one(&Options::default());
        let (_steering, mut b) = net.b.open_one(&Options::default());
        assert!(steering.mode().native, "veth has XDP: {}", steering.mode());
        let interface = net.b.interface().index();
        for v6 in [false, true] {
            let path = net.a.path(&net.b, v6);
            let overhead = if v6 { 40 } else { 20 } + 8 + 12 + 4;
            let payload_max = payload_max.min((mtu as usize).min(4300) - overhead) & !3;
            let sizes = (0..=payload_max).step_by(if mtu == 1500 { 1 } else { 7 });
            for payload in sizes.chain([payload_max]) {
                let number = payload as u32;
                send(&mut a, &path, QPN, number, payload).expect("sent");
                flush(&mut a);
                let mut got = None;
                until("the packet", || {
                    b.receive(&mut |received| {
                        assert_eq!(received.source, path.source);
                        assert_eq!(received.destination, path.destination);
                        assert_eq!(received.interface, interface);
                        assert_eq!(received.source_port, path.source_port);
                        assert_eq!(received.traffic_class, 26 << 2 | Ecn::Capable0 as u8);
                        assert_eq!(received.hop_limit, 61);
                        assert_eq!(received.packet.len(), message_bytes(payload));
                        assert!(got.is_none(), "twice");
                        got = Some(check(received));
                    });
                    got.is_some()
                });
                assert_eq!(got, Some((number, payload)));
            }
            let long = a.packet_bytes_max() + 4 - overhead;
            assert_eq!(
                send(&mut a, &path, QPN, 1, long),
                Err(SendError::TooLong),
                "mtu {mtu}"
            );
        }
    }
}
