//! What the engine itself costs: one inline WRITE of 8 bytes posted and its completion polled,
//! over a transport that does nothing but the copy.
//!
//!     cargo run --release -p sluice-verbs --example post_poll

use std::time::Instant;

#[path = "../tests/loopback/mod.rs"]
mod loopback;

use loopback::{masks, world};
use sluice_verbs::keys::KeyInfo;
use sluice_verbs::transport::{NewQp, QpChange, QpParams, TransportCaps};
use sluice_verbs::*;
use std::sync::Arc;

/// Says that everything is done.
struct Nothing;

impl Transport for Nothing {
    fn caps(&self) -> TransportCaps {
        loopback::Loopback(Arc::default()).caps()
    }

    fn create_qp(&self, _: &QpParams) -> Result<NewQp> {
        let transport = Box::new(Nothing);
        Ok(NewQp {
            qpn: 0x100,
            transport,
        })
    }

    fn create_cq(&self, _: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(Nothing))
    }

    fn key_published(&self, _: &KeyInfo) -> Result<()> {
        Ok(())
    }

    fn key_withdrawn(&self, _: &KeyInfo) {}

    fn create_srq(&self, _: bool) -> Result<u32> {
        Ok(0x100)
    }
}

impl CqTransport for Nothing {
    fn progress(&self, _: &Cq, _: &mut Aftermath) {}
}

impl QpTransport for Nothing {
    fn bind(&self, _: &Arc<Qp>) {}

    fn post(&self, _: &Qp, wqe: &Wqe<'_>) -> Posted {
        Posted::Done(SendDone::ok(wqe.length as u32))
    }

    fn modify(&self, _: &Qp, _: &QpChange<'_>, _: &mut Aftermath) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, _: &mut Aftermath) {}
}

fn ready(qp: &Qp) {
    for (state, mask) in masks(QpType::Rc) {
        let attr = QpAttr {
            qp_state: state as u32,
            ..loopback::attr_for(0x100)
        };
        qp.modify(&attr, mask).expect("a legal way");
    }
}

/// Median of ten rounds, in nanoseconds for one call of `step`.
fn measure(name: &str, mut step: impl FnMut()) {
    const STEPS: u32 = 1_000_000;
    let mut rounds: Vec<f64> = (0..10)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..STEPS {
                step();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name}: {:.1} ns", rounds[rounds.len() / 2]);
}

fn main() {
    let world = world();
    let device = Device::new("nothing", Arc::new(Nothing));
    let context = device.open().expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(256, 0, None, 0).expect("a queue");
    let mut init = world.init(QpType::Rc, &cq);
    init.recv_cq = Some(cq.clone());
    let qp = pd.create_qp(&init).expect("a queue pair");
    ready(&qp);

    let value = 42u64;
    let pieces = [Sge {
        addr: &raw const value as u64,
        length: 8,
        lkey: 0,
    }];
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, 1);
    wr.sges = &pieces;
    wr.flags = send_flags::INLINE | send_flags::SIGNALED;
    measure("inline WRITE of 8 bytes, post and poll", || {
        qp.post_send(&wr).expect("room");
        assert!(cq.poll_one().is_some());
    });

    let memory = loopback::Memory::new(&pd, loopback::ALL);
    let registered = [memory.sge(0, 8)];
    wr.sges = &registered;
    wr.flags = send_flags::SIGNALED;
    measure("the same from registered memory", || {
        qp.post_send(&wr).expect("room");
        assert!(cq.poll_one().is_some());
    });

    measure("poll of an empty CQ", || assert!(cq.poll_one().is_none()));
}
