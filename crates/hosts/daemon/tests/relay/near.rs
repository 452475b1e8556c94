//! Connections of programs here, and relays of peers and servers that cannot be had.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_daemon::capture::orders::{Counts, Order};

use crate::scene::{OWN, PATIENCE, SECRET, Scene};

/// Says a byte to whoever connects, until the test ends. How many have.
fn serve(listener: TcpListener) -> Arc<AtomicU64> {
    let accepted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::Relaxed);
            // It may be gone already.
            let _ = stream.and_then(|mut stream| stream.write_all(b"x"));
        }
    });
    accepted
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
    let fill = scene.within(|| TcpStream::connect(at));
    (listener, vec![fill.expect("connected")])
}

/// Until the relay has heard of a peer, nothing is captured. A server's port, to which connections
/// are now.
fn await_capture(scene: &mut Scene) -> u16 {
    let server = scene.listen(OWN);
    let port = server.local_addr().expect("a name").port();
    serve(server);
    let end = Instant::now() + PATIENCE;
    let before = scene.counts;
    while scene.hear_counts().captured == before.captured {
        assert!(Instant::now() < end, "nothing is captured");
        connect(scene, port, 1);
    }
    port
}

/// Programs reach a server whatever the peer's relay is like, and are not captured at each attempt;
/// after a while it is tried again.
fn is_left_alone(scene: &mut Scene, relay: u16) {
    const CONNECTIONS: u32 = 40;
    reach(scene, relay);
    let port = await_capture(scene);
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

/// Local ports of connections to this port that nobody has answered, of proc_net_tcp(5).
fn unanswered(scene: &Scene, to: u16) -> BTreeSet<u16> {
    let table = || std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table");
    let port = |field: &str| u16::from_str_radix(field.rsplit(':').next()?, 16).ok();
    let all = scene.within(table);
    let lines = all.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, local, remote, state, ..] = fields.as_slice() else {
            return None;
        };
        (state == "02" && port(remote) == Some(to)).then(|| port(local))?
    });
    lines.collect()
}

#[test]
fn a_server_that_does_not_accept_in_time_is_connected_to_once() {
    let test = "a_server_that_does_not_accept_in_time_is_connected_to_once";
    let Some(mut scene) = Scene::new(test, "") else {
        return;
    };
    let (server, fill) = full(&scene);
    let port = server.local_addr().expect("a name").port();
    // The relay is its own peer.
    reach(&scene, scene.ports[0]);
    // One goes by the relay: it has not stood still, and is not left alone.
    while scene.hear_counts().served == 0 {
        await_capture(&mut scene);
    }
    let before = scene.counts;
    let script = format!("exec 3<>/dev/tcp/{OWN}/{port} && read -r -N 1 -u 3 x && [ $x = x ]");
    let mut client = scene.program(&script).spawn().expect("bash");
    let end = Instant::now() + PATIENCE;
    // The relay's, and when that is given up the one that is made directly.
    let is_direct = |scene: &mut Scene| scene.hear_counts().direct > before.direct;
    loop {
        let is_direct = is_direct(&mut scene);
        let now = unanswered(&scene, port);
        assert!(now.len() < 2, "both at once: {now:?}");
        if is_direct && now.len() == 1 {
            break;
        }
        assert!(Instant::now() < end, "it is not tried directly");
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::net::listen(&server, 16).expect("listens");
    let accepted = serve(server);
    assert!(client.wait().expect("bash").success());
    drop(fill);
    let end = Instant::now() + PATIENCE;
    // It is refused, or made after all.
    let is_decided = |counts: Counts, accepted: u64| counts.refused > 0 || accepted > 2;
    while !is_decided(scene.hear_counts(), accepted.load(Ordering::Relaxed)) {
        assert!(Instant::now() < end, "{:?}", scene.counts);
        std::thread::sleep(Duration::from_millis(5));
    }
    // What filled the queue, and the program.
    assert_eq!(accepted.load(Ordering::Relaxed), 2);
}
