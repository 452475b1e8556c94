//! No call of a transport leads back into it: what follows waits until it is run.

mod loopback;

use std::sync::atomic::Ordering;

use loopback::*;
use sluice_verbs::responder::{RecvDone, RecvWqe};
use sluice_verbs::*;

fn signalled(wr_id: u64) -> SendWr<'static> {
    let mut wr = SendWr::new(WrOpcode::RdmaWrite, wr_id);
    wr.flags = send_flags::SIGNALED;
    wr
}

/// Times that the transport was asked to change its state.
fn changes(transport: &LoopQp) -> usize {
    transport.states.lock().unwrap().len()
}

#[test]
fn a_failed_request_moves_the_queue_pair_when_it_is_run() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    a.post_send(&signalled(1)).unwrap();
    let before = changes(&transport);
    let mut after = Aftermath::new();
    a.complete_send(0, SendDone::failed(WcStatus::RetryExcErr), &mut after);
    assert_eq!(statuses(&world.cq), [(0, WcStatus::RetryExcErr)]);
    assert_eq!((a.state(), changes(&transport)), (QpState::Rts, before));
    // What the transport says in the meantime changes nothing.
    a.complete_send(1, SendDone::ok(0), &mut after);
    assert_eq!(statuses(&world.cq), []);
    after.run();
    assert_eq!((a.state(), changes(&transport)), (QpState::Err, before + 1));
    assert_eq!(statuses(&world.cq), [(1, WcStatus::WrFlushErr)]);
}

#[test]
fn held_requests_go_out_when_it_is_run() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.keep_order.store(true, Ordering::SeqCst);
    transport.room.store(0, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    a.post_send(&signalled(1)).unwrap();
    transport.room.store(-1, Ordering::SeqCst);
    let mut after = Aftermath::new();
    a.resume(&mut after);
    assert_eq!(*transport.order.lock().unwrap(), []);
    assert!(!after.is_empty());
    after.run();
    assert_eq!(*transport.order.lock().unwrap(), [0, 1]);
    let succeeded = |id| (id, WcStatus::Success);
    assert_eq!(statuses(&world.cq), [succeeded(0), succeeded(1)]);
}

#[test]
fn nothing_follows_where_nothing_waits() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    a.post_send(&signalled(0)).unwrap();
    let mut after = Aftermath::new();
    a.complete_send(0, SendDone::ok(0), &mut after);
    a.resume(&mut after);
    assert!(after.is_empty());
}

/// A fence that waits for what ended is no reason to be silent, and one that waits for more is.
#[test]
fn a_fence_lets_go_with_the_last_read() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    let transport = world.transport(&a);
    transport.hold.store(true, Ordering::SeqCst);
    for id in 0..2 {
        a.post_send(&SendWr::new(WrOpcode::RdmaRead, id)).unwrap();
    }
    let mut fenced = signalled(2);
    fenced.flags |= send_flags::FENCE;
    a.post_send(&fenced).unwrap();
    let mut after = Aftermath::new();
    a.complete_send(1, SendDone::ok(0), &mut after);
    assert!(after.is_empty());
    a.complete_send(0, SendDone::ok(0), &mut after);
    assert!(!after.is_empty());
    after.run();
    assert_eq!(transport.held.lock().unwrap().last().unwrap().0, 2);
}

#[test]
fn a_failure_is_told_once_and_means_nothing_behind_a_reset() {
    let world = world();
    let (a, b) = world.pair(QpType::Rc);
    let mut after = Aftermath::new();
    a.fail(Some(EventType::QpFatal), &mut after);
    a.fail(Some(EventType::QpFatal), &mut after);
    assert_eq!(a.state(), QpState::Rts);
    assert_eq!(events(&world.context).len(), 1);
    set_state(&a, QpState::Reset).unwrap();
    to_state(&a, b.num(), QpState::Rts);
    after.run();
    assert_eq!(a.state(), QpState::Rts, "it was another life");
    with_aftermath(|after| a.fail(Some(EventType::QpFatal), after));
    assert_eq!(a.state(), QpState::Err);
}

#[test]
fn a_bad_receive_breaks_its_queue_pair_when_it_is_run() {
    let world = world();
    let (a, _b) = world.pair(QpType::Rc);
    a.post_recv(7, &[]).unwrap();
    a.post_recv(8, &[]).unwrap();
    let mut recv = RecvWqe::new();
    let mut after = Aftermath::new();
    a.take_recv(&mut recv, &mut after).unwrap();
    a.complete_recv(
        &mut recv,
        &RecvDone::failed(WcStatus::LocLenErr),
        &mut after,
    );
    assert_eq!(a.state(), QpState::Rts);
    assert_eq!(statuses(&world.cq), [(7, WcStatus::LocLenErr)]);
    after.run();
    assert_eq!(a.state(), QpState::Err);
    assert_eq!(statuses(&world.cq), [(8, WcStatus::WrFlushErr)]);
}
