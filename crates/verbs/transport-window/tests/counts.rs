//! What is counted of frames and hosts.

mod common;
#[path = "common/liar.rs"]
mod liar;
#[path = "common/scene.rs"]
mod scene;

use common::Window;
use scene::{Honest, connect, connect_with};
use sluice_transport_window::WindowTransport;
use sluice_verbs::{Transport as _, WrOpcode};
use sluice_verbs_testing::{request, until};
use sluice_window::Kind;

fn count(transport: &WindowTransport, name: &str) -> u64 {
    let counters = transport.report().counters;
    let found = counters.iter().find(|(its, _)| *its == name);
    found.unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn frames_requests_that_come_too_early_and_hosts_are_counted() {
    let window = Window::new(Kind::Coherent, 2);
    let transports = [window.open(), window.open()];
    let [first, second] = transports.each_ref().map(|it| Honest::on(it.clone()));
    let [from, to] = [&first, &second].map(Honest::end);
    connect_with(&from, to.qp.num(), to.psn, 7);
    connect(&to, from.qp.num(), from.psn);
    let sge = [from.sge(0, 20_000)];
    let send = request(WrOpcode::Send, 1, &sge, 0, 0);
    from.qp.post_send(&send).unwrap();
    until("a request that came too early", || {
        count(&transports[1], "not_yet") > 0
    });
    to.post_recv(2, 0, 20_000);
    assert_eq!(from.completion().status, 0);
    assert_eq!(to.good().wr_id, 2);
    for transport in &transports {
        assert!(count(transport, "frames_sent") > 0);
        assert!(count(transport, "frames_received") > 0);
        assert_eq!(count(transport, "hosts_joined"), 1);
    }
    // The request that was too early has brought its bytes in vain.
    let sent = count(&transports[0], "bytes_sent");
    assert!(sent >= 40_000 && sent.is_multiple_of(20_000), "{sent}");
    assert_eq!(count(&transports[1], "bytes_received"), sent);
    assert_eq!(count(&transports[1], "bytes_sent"), 0);
    to.qp.destroy().unwrap();
    drop((to, second));
    let [stays, goes] = transports;
    drop(goes);
    until("the end of a host", || count(&stays, "hosts_left") == 1);
    assert_eq!(count(&stays, "hosts_lost"), 0);
    assert_eq!(count(&stays, "hosts_broken"), 0);
}
