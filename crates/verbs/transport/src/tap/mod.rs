//! Tells a trace what queue pairs do (`SLUICE_VERBS_TRACE_FILE`, decision 0009), for a transport
//! without packets of its own.
//!
//! The trace gets messages, with the numbers that packets would have: sequence numbers start where
//! the queue pair's attributes say and count packets of the path MTU. The requester's side sees
//! everything that it asked for, also what it did itself in the peer's memory; the responder's side
//! sees what came to it. Where both are in one process only the requester's side speaks, so that
//! nothing is there twice.
//!
//! What the seam shows of the requester is told there, by [`Traced`]. The transport tells the rest
//! ([`Tap::completing`] and the responder's calls), which only it knows (decision 0036).
//!
//! Off, a tap is one look at a null pointer. On, it is never waited for ([`Recorder::record`]).

mod fill;
mod management;
mod requester;
mod responder;
mod traced;

pub use management::Management;
pub use responder::{Datagram, Extras, Operation};
pub use traced::Traced;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_trace::{Direction, End, Flow, Kind, Message, Mtu, Psn, Recorder, Service};
use sluice_verbs::transport::QpChange;
use sluice_verbs::{AhAttr, Gid, Qp, QpState, QpType};

use sluice_verbs::locks::lock;

pub use sluice_trace::Ending;

/// A queue pair's tap.
pub struct Tap {
    recorder: Arc<Recorder>,
    service: Service,
    qpn: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// To the connected peer; of datagrams the last one's.
    flow: Option<Arc<Flow>>,
    send_psn: Psn,
    /// Requests without an answer.
    sent: VecDeque<Sent>,
    /// Messages that the peer has completed.
    peer_msn: u32,
    receive_psn: Psn,
    /// Messages of the peer that this side has completed.
    msn: u32,
}

struct Sent {
    /// The engine's number.
    seq: u64,
    psn: Psn,
    /// It was refused for now, or is behind one that was.
    again: bool,
}

impl Tap {
    /// Of a queue pair of that number, for the trace that the environment asks for. None while
    /// nobody traces.
    pub fn new(qp_type: QpType, qpn: u32) -> Option<Arc<Self>> {
        let recorder = sluice_trace::of_process()?;
        Some(Self::to(recorder.clone(), qp_type, qpn))
    }

    /// For that trace.
    pub fn to(recorder: Arc<Recorder>, qp_type: QpType, qpn: u32) -> Arc<Self> {
        Arc::new(Self {
            recorder,
            service: match qp_type {
                QpType::Rc => Service::Rc,
                QpType::Uc => Service::Uc,
                QpType::Ud => Service::Ud,
                QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            },
            qpn,
            state: Mutex::default(),
        })
    }

    fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Xrc)
    }

    /// A state change that happens.
    fn modified(&self, qp: &Qp, change: &QpChange<'_>) {
        let mut state = lock(&self.state);
        match (change.from, change.to) {
            (_, QpState::Reset) => *state = State::default(),
            (QpState::Init, QpState::Rtr) => {
                state.receive_psn = Psn::new(change.attr.rq_psn);
                if self.service != Service::Ud {
                    let attr = change.attr;
                    let mtu = Mtu::from_code(attr.path_mtu as u8).unwrap_or(Mtu::Bytes1024);
                    let flow = self.flow(qp, &attr.ah_attr, attr.dest_qp_num, mtu);
                    state.flow = Some(Arc::new(flow));
                }
            }
            (QpState::Rtr, QpState::Rts) => state.send_psn = Psn::new(change.attr.sq_psn),
            (_, QpState::Err | QpState::Sqe) => state.sent.clear(),
            _ => {}
        }
    }

    fn flow(&self, qp: &Qp, ah: &AhAttr, qpn: u32, mtu: Mtu) -> Flow {
        let entry = qp.gid(ah.port_num.max(1), u32::from(ah.grh.sgid_index));
        let own = entry.map_or(Gid::default(), |entry| entry.gid);
        // Within a host peers find each other by number, and a program may leave the address out.
        let peer = if ah.grh.dgid.is_zero() {
            own
        } else {
            ah.grh.dgid
        };
        Flow {
            service: self.service,
            mtu,
            local: End::new(own.0, self.qpn),
            remote: End::new(peer.0, qpn),
            traffic_class: ah.grh.traffic_class,
            flow_label: ah.grh.flow_label,
            hop_limit: ah.grh.hop_limit,
        }
    }

    fn record(
        &self,
        state: &State,
        direction: Direction,
        psn: Psn,
        kind: Kind,
        len: u32,
        fill: impl FnMut(usize, &mut [u8]),
    ) {
        if let Some(flow) = &state.flow {
            let message = Message {
                flow,
                direction,
                psn,
                kind,
                len,
            };
            self.recorder.record(&message, fill);
        }
    }

    /// The flow of a datagram, which most often is that of the one before.
    fn set_flow(state: &mut State, flow: Flow) {
        if state.flow.as_deref() != Some(&flow) {
            state.flow = Some(Arc::new(flow));
        }
    }
}
