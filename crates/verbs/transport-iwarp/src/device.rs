//! What the engine has of a device: the transport, queue pairs, completion queues, connections.

use core::sync::atomic::{AtomicU32, Ordering};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use sluice_sys::errno::Errno;
use sluice_transport::polls::VainPolls;
use sluice_transport::request::operation;
use sluice_verbs::error::Error;
use sluice_verbs::iw_cm::{ConnectionParameters, EventSink, IwCm};
use sluice_verbs::opcode::Opcodes;
use sluice_verbs::report::TransportReport;
use sluice_verbs::transport::{ArmedQueues, Identity, NewQp, QpChange, QpParams, TransportCaps};
use sluice_verbs::{
    Aftermath, Cq, CqTransport, Handed, Posted, Qp, QpState, QpTransport, QpType, Result, SendDone,
    Transport, WcStatus, Wqe, WrOpcode,
};

use crate::completions::Sources;
use crate::manager::IRD_MAX;
use crate::node::Node;
use crate::part::Part;
use crate::socket::Polls;

/// Bytes of inline data that a queue pair can ask for.
const INLINE_MAX: u32 = 1024;
/// The transport: one per device.
pub struct IwarpTransport {
    node: Arc<Node>,
}

impl IwarpTransport {
    /// A transport over the TCP of the calling thread's network namespace, with so many threads.
    /// `crc`: CRCs are asked for (they are there as well where a peer does).
    pub fn over_tcp(threads: usize, crc: bool) -> core::result::Result<Arc<Self>, Errno> {
        let node = Node::start(threads, crc)?;
        let duty: Weak<Node> = Arc::downgrade(&node);
        sluice_sys::at_exit::remember(duty);
        Ok(Arc::new(Self { node }))
    }

    /// How long a peer that connects from now on may take to say what it wants: 10 s at first.
    pub fn set_request_wait(&self, wait: core::time::Duration) {
        self.node.manager.set_request_wait(wait);
    }
}

impl Drop for IwarpTransport {
    fn drop(&mut self) {
        self.node.stop();
    }
}

impl Transport for IwarpTransport {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            identity: Identity::IWARP,
            max_msg_sz: 1 << 31,
            mtu: 5,
            max_inline: INLINE_MAX,
            max_rd_atomic: IRD_MAX as u8,
            // The processor's own operations, on its own memory.
            atomic_cap: 2,
            uc: false,
            ud: false,
            xrc: false,
            // RFC 7306 has no SEND with immediate data.
            opcodes: Opcodes::ALL.filter(|facts| facts.opcode != WrOpcode::SendWithImm),
            // It waits for a while, and no count of the program's says how long.
            rnr_retry: false,
            by_address: true,
        }
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        if params.qp_type != QpType::Rc {
            return Err(Error::NotSupported);
        }
        let part = self.node.new_part(params)?;
        Ok(NewQp {
            qpn: part.qpn,
            transport: Box::new(IwarpQp {
                node: Arc::clone(&self.node),
                part,
            }),
        })
    }

    fn create_cq(&self, id: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(IwarpCq {
            sources: self.node.completions.add(id),
            node: Arc::clone(&self.node),
            id,
            vain: VainPolls::default(),
        }))
    }

    fn create_srq(&self, _xrc: bool) -> Result<u32> {
        // Peers do not name it.
        static LAST: AtomicU32 = AtomicU32::new(1);
        Ok(2 + LAST.fetch_add(1, Ordering::Relaxed) % 0x00ff_fff0)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sum = sluice_protocol::iwarp::Counters::default();
        for counters in self.node.parts().iter().filter_map(|part| part.counters()) {
            sum += &counters;
        }
        vec![
            ("frames_sent", sum.frames_sent),
            ("frames_received", sum.frames_received),
            ("bytes_direct", sum.bytes_direct),
            ("bytes_copied", sum.bytes_copied),
            ("stalls", sum.stalls),
            ("streams", self.node.manager.count() as u64),
        ]
    }

    fn report(&self) -> TransportReport {
        TransportReport {
            kind: "iwarp",
            ways: vec!["TCP".to_owned()],
            peers: Vec::new(),
            has_addresses: true,
            counters: self.counters(),
            is_partial: false,
        }
    }

    fn iw_cm(&self) -> Option<&dyn IwCm> {
        Some(self)
    }
}

impl IwarpTransport {
    fn polls(&self) -> Result<&Polls> {
        self.node.startups().ok_or(Error::NoResources)
    }
}

impl IwCm for IwarpTransport {
    fn set_sink(&self, sink: Arc<dyn EventSink>) {
        self.node.manager.set_sink(sink);
    }

    fn listen(&self, address: SocketAddr, v6_only: bool) -> Result<u32> {
        self.node.manager.listen(self.polls()?, address, v6_only)
    }

    fn end_listening(&self, listener: u32) {
        self.node.manager.end_listening(listener);
    }

    fn connect(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        tos: u8,
        parameters: &ConnectionParameters,
    ) -> Result<u32> {
        let ends = (source, destination);
        self.node
            .manager
            .connect(self.polls()?, ends, tos, parameters)
    }

    fn is_requested(&self, stream: u32) -> bool {
        self.node.manager.is_requested(stream)
    }

    fn accept(&self, stream: u32, parameters: &ConnectionParameters) -> Result<()> {
        if let Some(made) = self
            .node
            .manager
            .accept(self.polls()?, stream, parameters)?
        {
            made.start(stream);
        }
        Ok(())
    }

    fn reject(&self, stream: u32, private_data: &[u8]) {
        self.node.manager.reject(stream, private_data);
    }

    fn close(&self, stream: u32) {
        if let Some(part) = self.node.manager.close(stream) {
            part.close();
        }
    }

    fn forget(&self, stream: u32) {
        self.node.manager.forget(stream);
    }
}

/// The transport's part of a queue pair.
struct IwarpQp {
    node: Arc<Node>,
    part: Arc<Part>,
}

impl QpTransport for IwarpQp {
    fn bind(&self, qp: &Arc<Qp>) {
        self.part.bind(qp);
    }

    fn post(&self, _qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        match operation(wqe) {
            Some(_) => Posted::Pending,
            None => Posted::Done(SendDone::failed(WcStatus::LocQpOpErr)),
        }
    }

    fn is_by_record(&self) -> bool {
        true
    }

    fn posted(&self, _handed: &Handed, after: &mut Aftermath) -> Option<SendDone> {
        self.part.posted(after);
        None
    }

    fn modify(&self, _qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()> {
        let part = &self.part;
        match change.to {
            QpState::Reset => part.clear(after),
            QpState::Err | QpState::Sqe => part.stop(after),
            // The way is a stream, by its number.
            QpState::Rtr if change.from == QpState::Init => {
                let stream = change.attr.dest_qp_num;
                let polls = self.node.startups().ok_or(Error::NoResources)?;
                if let Some(made) = self.node.manager.bind(polls, stream, part)? {
                    made.start(stream);
                }
            }
            // From here on it is in RTR, at least.
            QpState::Rts if change.from == QpState::Rtr => part.leave(),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Init => {}
        }
        Ok(())
    }

    fn receives_posted(&self, after: &mut Aftermath) {
        self.part.receives_posted(after);
    }

    fn destroy(&self, after: &mut Aftermath) {
        self.node.remove_part(&self.part);
        self.part.end(after);
    }
}

/// The transport's part of a completion queue.
struct IwarpCq {
    node: Arc<Node>,
    id: u32,
    sources: Arc<Sources>,
    vain: VainPolls,
}

impl CqTransport for IwarpCq {
    fn progress(&self, cq: &Cq, after: &mut Aftermath) {
        let before = cq.filled();
        let mut frames = 0;
        self.sources.each(|part| {
            frames += part.progress(after);
        });
        if frames > 0 {
            self.node.note_polled(frames);
        }
        match frames == 0 && cq.filled() == before {
            true => self.vain.add(),
            false => self.vain.end(),
        }
    }

    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        Some(self.node.armed_queues())
    }

    fn armed(&self) {
        self.node.armed();
    }

    fn destroy(&self) {
        self.node.completions.remove(self.id, &self.sources);
    }
}
