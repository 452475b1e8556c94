//! Connections of programs here, and relays of peers that cannot be had.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use sluice_daemon::capture::orders::Order;

use crate::scene::{OWN, PATIENCE, SECRET, Scene};

/// Says a byte to whoever connects, until the test ends.
fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // It may be gone already.
            let _ = stream.and_then(|mut stream| stream.write_all(b"x"));
        }
    });
}

/// A program connects so often, one connection behind the other, and gets its byte by each.
fn connect(scene: &Scene, port: u16, count: u32) {
    let script = format!(
        "for ((i = 0; i < {count}; i++)); do
            exec 3<>/dev/tcp/{OWN}/{port} && read -r -N 1 -u 3 x && [ $x = x ] || exit 2
            exec 3>&-
        done"
    );
    let status = scene.program(&script).status();
    assert!(status.expect("bash").success());
}

/// The relay of a peer with the host's own address is at this port.
fn reach(scene: &Scene, port: u16) {
    scene.order(&Order::Reach {
        peer: 1,
        addresses: vec![OWN],
        port_v4: port,
        port_v6: 0,
        secret: SECRET,
    });
}

/// A listener whose queue is full: what connects now gets no answer, as behind a firewall.
fn full(scene: &Scene) -> (TcpListener, Vec<TcpStream>) {
    let listener = scene.listen(OWN);
    // listen(2): another length of the queue, for one that listens already. It is one longer.
    rustix::net::listen(&listener, 0).expect("listens");
    let at = listener.local_addr().expect("a name");
    let fill = scene.namespace.enter(|| TcpStream::connect(at));
    (listener, vec![fill.expect("connected")])
}

/// Programs reach a server whatever the peer's relay is like, and are not captured at each attempt;
/// after a while it is tried again.
fn is_left_alone(scene: &mut Scene, relay: u16) {
    const CONNECTIONS: u32 = 40;
    let server = scene.listen(OWN);
    let port = server.local_addr().expect("a name").port();
    serve(server);
    reach(scene, relay);
    // Until the relay has heard that, nothing is captured.
    let end = Instant::now() + PATIENCE;
    let before = scene.counts;
    while scene.hear_counts().captured == before.captured {
        assert!(Instant::now() < end, "nothing is captured");
        connect(scene, port, 1);
    }
    scene.await_counts(|counts| counts.direct == counts.captured && counts.open == 0);
    let found_out = scene.counts.captured;
    connect(scene, port, CONNECTIONS);
    // Which may have taken long: but it is left alone for longer and longer.
    let end = Instant::now() + PATIENCE;
    while scene.hear_counts().captured == found_out {
        assert!(Instant::now() < end, "it is not tried again");
        connect(scene, port, 1);
    }
    scene.await_counts(|counts| counts.direct == counts.captured && counts.open == 0);
    let tried = scene.counts.captured - found_out;
    assert!(tried < u64::from(CONNECTIONS / 2), "{tried}");
}

#[test]
fn a_peer_whose_relay_is_gone_is_left_alone() {
    let Some(mut scene) = Scene::new("a_peer_whose_relay_is_gone_is_left_alone", "") else {
        return;
    };
    // Somebody had this port, and nobody has it now.
    let port = scene.listen(OWN).local_addr().expect("a name").port();
    is_left_alone(&mut scene, port);
}

#[test]
fn a_peer_whose_relay_is_behind_a_firewall_is_left_alone() {
    let test = "a_peer_whose_relay_is_behind_a_firewall_is_left_alone";
    let Some(mut scene) = Scene::new(test, "") else {
        return;
    };
    let (listener, _fill) = full(&scene);
    let port = listener.local_addr().expect("a name").port();
    is_left_alone(&mut scene, port);
}

#[test]
fn a_peer_whose_relay_says_nothing_is_left_alone() {
    let Some(mut scene) = Scene::new("a_peer_whose_relay_says_nothing_is_left_alone", "") else {
        return;
    };
    // As one that is stopped: the kernel accepts for it.
    let listener = scene.listen(OWN);
    let port = listener.local_addr().expect("a name").port();
    is_left_alone(&mut scene, port);
}
