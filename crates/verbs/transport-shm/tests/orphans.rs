//! Queue pairs that take receives from a shared queue, when their peer's process ends: nothing is
//! flushed that others may still use, so events and states say it.

#![allow(unsafe_code)]

mod common;

use common::{PATIENCE, Pair, Way, World, until, wait};
use sluice_verbs::events::Element;
use sluice_verbs::{EventType, QpInit, QpState, QpType, SrqAttr, SrqInit, WcStatus, WrOpcode};

/// The second process talks to the first, says so, and is killed.
fn killed(test: &str, survivor: fn(&mut World), victim: fn(&mut World)) {
    match std::env::var("SLV_ROLE").as_deref() {
        Ok("first") => return survivor(&mut World::new()),
        Ok(_) => {
            victim(&mut World::new());
            // SIGKILL, without any farewell.
            // SAFETY: kill takes integers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            return;
        }
        Err(_) => {}
    }
    let mut pair = Pair::start(test, Way::Shared);
    assert!(wait(&mut pair.first).success(), "the survivor failed");
}

fn attr() -> SrqAttr {
    SrqAttr {
        max_wr: 16,
        max_sge: 1,
        srq_limit: 0,
    }
}

fn outlive_a_sender(world: &mut World) {
    let cq = world.context.create_cq(64, 0, None, 0).unwrap();
    let init = SrqInit {
        attr: attr(),
        ..SrqInit::default()
    };
    let srq = world.pd.create_srq(&init).unwrap();
    let mut end = world.end_with(QpType::Rc, 8192, &cq);
    let init = QpInit {
        send_cq: Some(cq.clone()),
        recv_cq: Some(cq.clone()),
        srq: Some(srq.clone()),
        cap: end.qp.cap(),
        cookie: 77,
        ..QpInit::new(QpType::Rc)
    };
    end.end.qp = world.pd.create_qp(&init).unwrap();
    world.introduce(&mut end);
    end.to_ready();
    for id in 0..4 {
        srq.post_recv(id, &[end.sge(0, 64)]).unwrap();
    }
    world.meet();
    assert_eq!(end.good().wr_id, 0);
    world.meet();
    // IBTA 11.6.3.1.4: the program may now let go of the queue pair and what it took.
    let readable = sluice_sys::unix::wait_readable(
        world.context.async_fd(),
        i32::try_from(PATIENCE.as_millis()).unwrap(),
    );
    assert_eq!(readable, Ok(true), "no event");
    let event = world.context.get_async_event().unwrap();
    assert_eq!(event.event, EventType::QpLastWqeReached);
    assert_eq!(event.element, Element::Qp(77));
    end.qp.ack_async_event();
    assert_eq!(end.qp.state(), QpState::Err);
    // The queue's receives are not the queue pair's.
    assert!(cq.poll_one().is_none());
    end.qp.destroy().unwrap();
    end.end.qp = world.pd.create_qp(&init).unwrap();
    assert_eq!(end.qp.state(), QpState::Reset);
}

fn send_and_die(world: &mut World) {
    let end = world.connected(QpType::Rc, 8192);
    let sge = [end.sge(0, 64)];
    let wc = end.run(&end.request(WrOpcode::Send, 1, &sge, 0));
    assert_eq!(wc.status, WcStatus::Success as u32);
    world.meet();
}

#[test]
fn a_shared_receive_queue_hears_of_the_end_by_an_event() {
    killed(
        "a_shared_receive_queue_hears_of_the_end_by_an_event",
        outlive_a_sender,
        send_and_die,
    );
}

fn outlive_an_initiator(world: &mut World) {
    let cq = world.cq(None);
    let domain = world.context.open_xrcd(None, true, false).unwrap();
    let init = QpInit {
        xrcd: Some(domain.clone()),
        ..QpInit::new(QpType::XrcRecv)
    };
    let target = world.context.create_xrc_recv(&init).unwrap();
    let init = SrqInit {
        attr: attr(),
        xrcd: Some(domain),
        cq: Some(cq.clone()),
        cookie: 0,
    };
    let srq = world.pd.create_srq(&init).unwrap();
    let mut as_target = world.around(target.clone(), 8192, &cq);
    world.introduce(&mut as_target);
    world.swap([u64::from(srq.num()), 0, 0, 0]);
    srq.post_recv(4, &[as_target.sge(0, 64)]).unwrap();
    srq.post_recv(5, &[as_target.sge(0, 64)]).unwrap();
    as_target.to_init();
    as_target.to_rtr();
    world.meet();
    assert_eq!(as_target.good().wr_id, 4);
    assert_eq!(target.state(), QpState::Rtr);
    world.meet();
    until("the error state", || target.state() == QpState::Err);
    assert!(as_target.cq.poll_one().is_none());
}

fn send_to_a_target_and_die(world: &mut World) {
    let mut end = world.end(QpType::XrcSend, 8192, None);
    world.introduce(&mut end);
    let srqn = world.swap([0; 4])[0] as u32;
    end.to_ready();
    world.meet();
    let sge = [end.sge(0, 64)];
    let mut wr = end.request(WrOpcode::Send, 1, &sge, 0);
    wr.xrc_srqn = srqn;
    assert_eq!(end.run(&wr).status, WcStatus::Success as u32);
    world.meet();
}

#[test]
fn an_extended_target_hears_of_the_end() {
    killed(
        "an_extended_target_hears_of_the_end",
        outlive_an_initiator,
        send_to_a_target_and_die,
    );
}
