//! Management datagrams of a trace. Connection managers that talk by other means, as those of one
//! host do by sockets, say here what they would have said to each other over a wire.

use std::sync::{Arc, Mutex};

use sluice_trace::{Direction, End, Ending, Flow, Kind, Message, Mtu, Psn, Service};
use sluice_verbs::Gid;
use sluice_verbs::transport::{MAD_BYTES, ManagementTrace};

use sluice_verbs::locks::lock;

/// Queue pair 1 (IBTA 10.2.5), at both ends.
const GSI: u32 = 1;
/// Its key.
const QKEY: u32 = 0x8001_0000;

/// The next numbers, of what goes out and of what comes in. A wire has one count for each pair
/// of hosts; who comes in here counts with the others.
static NEXT: Mutex<[u32; 2]> = Mutex::new([0; 2]);

/// The process's trace.
pub struct Management;

impl ManagementTrace for Management {
    fn is_on(&self) -> bool {
        sluice_trace::of_process().is_some()
    }

    fn record(&self, outbound: bool, gids: [Gid; 2], traffic_class: u8, mad: &[u8; MAD_BYTES]) {
        let Some(recorder) = sluice_trace::of_process() else {
            return;
        };
        let [local, remote] = gids;
        let direction = if outbound {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        let psn = {
            let mut next = lock(&NEXT);
            let count = &mut next[usize::from(!outbound)];
            let psn = Psn::new(*count);
            *count = count.wrapping_add(1);
            psn
        };
        let flow = Arc::new(Flow {
            service: Service::Ud,
            mtu: Mtu::Bytes256,
            local: End::new(local.0, GSI),
            remote: End::new(remote.0, GSI),
            traffic_class,
            flow_label: 0,
            hop_limit: 0,
        });
        let message = Message {
            flow: &flow,
            direction,
            psn,
            kind: Kind::Send {
                ending: Ending::Plain,
                solicited: false,
                srq: 0,
                qkey: QKEY,
            },
            len: MAD_BYTES as u32,
        };
        recorder.record(&message, |offset, bytes| {
            let part = mad.get(offset..offset + bytes.len());
            bytes.copy_from_slice(part.unwrap_or(&mad[..bytes.len()]));
        });
    }
}
