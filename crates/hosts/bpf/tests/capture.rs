//! Connections that are captured, those that are not, and what programs see of it.
mod common;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use common::scene::{Daemon, Scene, all_ports, direct, read};
use common::{Agent, Group, Host, can_run, until};
use sluice_bpf::{
    Capture, CaptureCounters, CaptureOptions, Destination, Error, Listener, Original, PortSet,
};

#[test]
fn agent() {
    common::run_as_agent();
}

#[test]
fn a_captured_connection_looks_as_it_was_meant() {
    if !can_run("a_captured_connection_looks_as_it_was_meant") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    for (address, source) in [
        (scene.net.b.v4, scene.net.a.v4),
        (scene.net.b.v6, scene.net.a.v6),
    ] {
        let to = SocketAddr::new(address, 4321);
        let end = client
            .connect(to)
            .expect("connects, though nobody is there");
        let (mut stream, original) = scene.daemon.accept(&scene.capture, to.is_ipv6());
        let port = stream.peer_addr().expect("a name").port();
        let seen = SocketAddr::new(source, port);
        let expected = Original {
            cookie: end.cookie,
            destination: to,
            source: Some(seen),
        };
        assert_eq!(original, Some(expected));
        assert_eq!((end.peer, end.local), (to, seen));
        assert_eq!(client.names(end.id), Ok(end.clone()));
        client.write(end.id, "question");
        assert_eq!(read(&mut stream, 8), "question");
        stream.write_all(b"answer").expect("written");
        assert_eq!(client.read(end.id, 6), Ok("answer".into()));
        // The daemon ends it: the program can still ask.
        let (remote, local) = (
            stream.peer_addr().expect("a name"),
            stream.local_addr().expect("a name"),
        );
        drop(stream);
        assert_eq!(client.read(end.id, 1), Err(0), "the end of the stream");
        assert_eq!(client.names(end.id), Ok(end.clone()));
        client.close(end.id);
        let again = scene
            .capture
            .take_original(scene.daemon.netns, remote, local);
        assert_eq!(again, Ok(None), "it is told once");
    }
    assert_eq!(scene.counters().captured, 2);
}

/// As programs that report figures do it: the client is gone before the daemon accepts.
#[test]
fn a_client_that_closes_at_once_is_not_forgotten() {
    if !can_run("a_client_that_closes_at_once_is_not_forgotten") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    for address in [scene.net.b.v4, scene.net.b.v6] {
        let to = SocketAddr::new(address, 4321);
        let end = client.connect(to).expect("connects");
        client.write(end.id, "figure");
        client.close(end.id);
        let (mut stream, original) = scene.daemon.accept(&scene.capture, to.is_ipv6());
        assert_eq!(original.map(|it| it.destination), Some(to));
        assert_eq!(read(&mut stream, 6), "figure");
    }
}

#[test]
fn an_ipv6_socket_that_speaks_ipv4_is_captured_as_ipv4() {
    if !can_run("an_ipv6_socket_that_speaks_ipv4_is_captured_as_ipv4") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let IpAddr::V4(v4) = scene.net.b.v4 else {
        unreachable!("it is one");
    };
    let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), 4321);
    let order = format!("socket {}", libc::AF_INET6);
    let id = client.ask(&order).expect("a socket");
    client
        .ask(&format!("join {id} {mapped}"))
        .expect("connects");
    let (stream, original) = scene.daemon.accept(&scene.capture, false);
    let original = original.expect("captured");
    assert_eq!(original.destination, SocketAddr::new(v4.into(), 4321));
    let end = client.names(id.parse().expect("a number")).expect("names");
    // As the library writes them.
    assert_eq!(end.peer.ip().to_canonical(), scene.net.b.v4);
    assert_eq!(end.local.ip().to_canonical(), scene.net.a.v4);
    assert_eq!(end.local.port(), stream.peer_addr().expect("a name").port());
}

#[test]
fn what_is_not_chosen_goes_its_own_way() {
    if !can_run("what_is_not_chosen_goes_its_own_way") {
        return;
    }
    let mut scene = Scene::new(&CaptureOptions::default());
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    let to = listener.local;

    // Outside of the cgroup.
    let mut outside = Agent::start(&scene.net.a, None);
    direct(&mut outside, &mut server, &listener);

    // Another address, and loopback.
    let mut client = scene.client();
    let own = server.listen("127.0.0.1:0".parse().expect("an address"));
    let other = scene.net.a.v4_any();
    let mut neighbour = Agent::start(&scene.net.a, None);
    let other = neighbour.listen(other);
    direct(&mut client, &mut neighbour, &other);
    let there = neighbour.listen("127.0.0.1:0".parse().expect("an address"));
    direct(&mut client, &mut neighbour, &there);

    // In a network namespace without a listener.
    let mut elsewhere = Agent::start(&scene.net.b, Some(&scene.group));
    direct(&mut elsewhere, &mut server, &listener);
    direct(&mut elsewhere, &mut server, &own);

    // A program that has chosen a device or a mark.
    let device = format!(
        "socket {} {} {} 77",
        libc::AF_INET,
        libc::SOL_SOCKET,
        libc::SO_MARK
    );
    let id = client.ask(&device).expect("a socket");
    client.ask(&format!("join {id} {to}")).expect("connects");
    server.accept(listener.id);

    // One that is left alone.
    let id = client
        .ask(&format!("socket {}", libc::AF_INET))
        .expect("a socket");
    let own = client.ask(&format!("own {id}")).expect("a cookie");
    let cookie = own.split(' ').nth(1).and_then(|word| word.parse().ok());
    scene
        .capture
        .exempt(cookie.expect("a number"))
        .expect("told");
    client.ask(&format!("join {id} {to}")).expect("connects");
    server.accept(listener.id);

    // A port that is left alone.
    let mut ports = |chosen: bool| {
        let ports = PortSet::all().with(to.port()..=to.port(), chosen);
        scene.capture.set_ports(&ports).expect("set");
    };
    ports(false);
    direct(&mut client, &mut server, &listener);
    ports(true);

    // Another port, and nothing.
    let one = Destination {
        address: scene.net.b.v4,
        port: Some(to.port() ^ 1),
        source: None,
    };
    scene.capture.set_destinations(&[one]).expect("set");
    direct(&mut client, &mut server, &listener);
    scene.capture.set_destinations(&[]).expect("set");
    direct(&mut client, &mut server, &listener);
    assert_eq!(scene.counters(), CaptureCounters::default());

    // And the same, chosen.
    let one = Destination {
        port: Some(to.port()),
        ..one
    };
    scene.capture.add_destination(&one).expect("set");
    let (end, _stream) = scene.captured(&mut client, to);
    assert_eq!(
        end.local.ip(),
        "127.0.0.1".parse::<IpAddr>().expect("one"),
        "no source is known"
    );
    assert_eq!(
        scene.capture.remove_destination(one.address, one.port),
        Ok(true)
    );
    assert_eq!(
        scene.capture.remove_destination(one.address, one.port),
        Ok(false)
    );
    direct(&mut client, &mut server, &listener);
}

#[test]
fn processes_and_programs_are_chosen() {
    if !can_run("processes_and_programs_are_chosen") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    scene.captured(&mut client, listener.local);
    scene.capture.leave_process(client.id()).expect("told");
    direct(&mut client, &mut server, &listener);
    scene.capture.forget_process(client.id()).expect("told");
    scene.captured(&mut client, listener.local);

    // Each thread has a name, and the harness gives them.
    let threads = std::fs::read_dir(format!("/proc/{}/task", client.id())).expect("there");
    let names: Vec<String> = threads
        .map(|thread| thread.expect("one").path().join("comm"))
        .map(|path| std::fs::read_to_string(path).expect("a name"))
        .map(|name| name.trim_end().to_owned())
        .collect();
    for wrong in ["", "a-name-of-16-byt"] {
        let set = scene.capture.set_programs(&[wrong.to_owned()]);
        assert!(matches!(set, Err(Error::Invalid { .. })), "{wrong}");
    }
    scene
        .capture
        .set_programs(&["another".to_owned()])
        .expect("set");
    direct(&mut client, &mut server, &listener);
    scene.capture.set_programs(&names).expect("set");
    scene.captured(&mut client, listener.local);
}

#[test]
fn without_a_listener_connections_go_their_own_way() {
    if !can_run("without_a_listener_connections_go_their_own_way") {
        return;
    }
    let mut scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let v4 = server.listen(scene.net.b.v4_any());
    let v6 = server.listen(scene.net.b.v6_any());
    scene.captured(&mut client, v4.local);
    scene.captured(&mut client, v6.local);
    // One family only.
    let listener = Listener {
        v6: None,
        ..scene.daemon.listener()
    };
    scene
        .capture
        .set_listener(scene.daemon.netns, listener)
        .expect("set");
    scene.captured(&mut client, v4.local);
    direct(&mut client, &mut server, &v6);
    // The daemon has closed them, and said nothing.
    let old = scene.daemon.listener();
    scene
        .capture
        .set_listener(scene.daemon.netns, old)
        .expect("set");
    let next = Daemon::new(&scene.net.a);
    std::mem::replace(&mut scene.daemon, next).close(&scene.net.a);
    direct(&mut client, &mut server, &v4);
    direct(&mut client, &mut server, &v6);
    assert_eq!(scene.counters().no_listener, 2);
    let next = scene.daemon.listener();
    scene
        .capture
        .set_listener(scene.daemon.netns, next)
        .expect("set");
    scene.captured(&mut client, v4.local);
    scene
        .capture
        .remove_listener(scene.daemon.netns)
        .expect("removed");
    direct(&mut client, &mut server, &v4);
}

#[test]
fn a_full_map_lets_connections_go_their_own_way() {
    if !can_run("a_full_map_lets_connections_go_their_own_way") {
        return;
    }
    let scene = Scene::new(&CaptureOptions {
        connections_max: 2,
        destinations_max: 2,
        ..CaptureOptions::default()
    });
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    for round in 0..3 {
        let first = scene.captured(&mut client, listener.local);
        let second = scene.captured(&mut client, listener.local);
        let third = direct(&mut client, &mut server, &listener);
        assert_eq!(scene.counters().full, round + 1);
        for id in [first.0.id, second.0.id, third.id] {
            client.close(id);
        }
    }
    let mut scene = scene;
    let more = all_ports([192, 0, 2, 9].into(), scene.net.a.v4);
    let full = Error::Full {
        what: "destinations",
        limit: 2,
    };
    assert_eq!(scene.capture.add_destination(&more), Err(full));
    // Many at once, that end as their process does.
    drop(client);
    let mut client = scene.client();
    until("there is room", || {
        let end = client.connect(listener.local).expect("connects");
        end.peer == listener.local && scene.counters().captured > 6
    });
}

#[test]
fn entries_go_with_their_sockets() {
    if !can_run("entries_go_with_their_sockets") {
        return;
    }
    const CONNECTIONS: u64 = 1000;
    let scene = Scene::new(&CaptureOptions {
        connections_max: 4,
        ..CaptureOptions::default()
    });
    let mut client = scene.client();
    let listener = scene.daemon.v4.try_clone().expect("a copy");
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let to = SocketAddr::new(scene.net.b.v4, 4321);
    let order = format!("hammer {to} {CONNECTIONS}");
    assert_eq!(client.ask(&order), Ok("0".into()));
    let counters = CaptureCounters {
        captured: CONNECTIONS,
        ..CaptureCounters::default()
    };
    assert_eq!(scene.counters(), counters);
}

#[test]
fn a_socket_that_tries_again_is_looked_at_again() {
    if !can_run("a_socket_that_tries_again_is_looked_at_again") {
        return;
    }
    let mut scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    let closed = SocketAddr::new(scene.net.b.v4, 1);
    let one = Destination {
        address: scene.net.b.v4,
        port: Some(listener.local.port()),
        source: Some(scene.net.a.v4),
    };
    scene.capture.set_destinations(&[one]).expect("set");
    let id = client
        .ask(&format!("socket {}", libc::AF_INET))
        .expect("a socket");
    let refused = client.ask(&format!("join {id} {closed}"));
    assert_eq!(refused, Err(libc::ECONNREFUSED));
    client
        .ask(&format!("join {id} {}", listener.local))
        .expect("connects");
    let (stream, original) = scene.daemon.accept(&scene.capture, false);
    assert!(original.is_some());
    let id: u32 = id.parse().expect("a number");
    assert_eq!(client.names(id).expect("names").peer, listener.local);
    drop(stream);
    // Let go, and connected elsewhere.
    client.ask(&format!("unjoin {id}")).expect("disconnected");
    let mut neighbour = Agent::start(&scene.net.a, None);
    let other = neighbour.listen(scene.net.a.v4_any());
    client
        .ask(&format!("join {id} {}", other.local))
        .expect("connects");
    neighbour.accept(other.id);
    assert_eq!(client.names(id).expect("names").peer, other.local);
}

#[test]
fn bound_sockets_keep_their_addresses() {
    if !can_run("bound_sockets_keep_their_addresses") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let to = SocketAddr::new(scene.net.b.v4, 4321);
    // The same port at two addresses, and every address.
    let bound: [IpAddr; 3] = [scene.net.a.v4, [127, 0, 0, 1].into(), [0, 0, 0, 0].into()];
    let mut streams = Vec::new();
    for (own, port) in bound.into_iter().zip([34567, 34567, 34568]) {
        let order = format!("socket {}", libc::AF_INET);
        let id = client.ask(&order).expect("a socket");
        client
            .ask(&format!("bind {id} {own}:{port}"))
            .expect("bound");
        client.ask(&format!("join {id} {to}")).expect("connects");
        let (stream, original) = scene.daemon.accept(&scene.capture, false);
        let end = client.names(id.parse().expect("a number")).expect("names");
        // What loopback is here nobody means.
        let seen = SocketAddr::new(scene.net.a.v4, port);
        assert_eq!((end.local, end.peer), (seen, to));
        let expected = Original {
            cookie: end.cookie,
            destination: to,
            source: Some(seen),
        };
        assert_eq!(original, Some(expected));
        streams.push(stream);
    }
}

/// A connection of the daemon's to a program at `to`, on behalf of `client`.
fn on_behalf(
    host: &Host,
    capture: &Capture,
    netns: u64,
    to: SocketAddr,
    client: Option<SocketAddr>,
    from: Option<SocketAddr>,
) -> (TcpStream, SocketAddr) {
    host.enter(|| {
        let family = if to.is_ipv6() {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        // Below those that the kernel gives out, so that no listener of another test gets one that is to be bound again.
        static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);
        let own: IpAddr = if to.is_ipv6() {
            Ipv6Addr::LOCALHOST.into()
        } else {
            Ipv4Addr::LOCALHOST.into()
        };
        let any = SocketAddr::new(own, NEXT_PORT.fetch_add(1, Ordering::Relaxed));
        let socket = common::socket(family, &[(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)]);
        common::bind(&socket, from.unwrap_or(any)).expect("bound");
        let from = sluice_sys::tcp::local_address(socket.as_raw_fd()).expect("a name");
        if let Some(client) = client {
            capture.present(netns, from, to, client).expect("told");
        }
        common::connect(&socket, to).expect("connects");
        (TcpStream::from(socket), from)
    })
}

#[test]
fn a_server_sees_the_client() {
    if !can_run("a_server_sees_the_client") {
        return;
    }
    let net = common::net();
    let group = Group::new();
    let capture = Capture::attach(&group.open(), &CaptureOptions::default()).expect("attaches");
    let mut server = Agent::start(&net.b, Some(&group));
    let mut outside = Agent::start(&net.b, None);
    let netns = server.netns;
    let v4: SocketAddr = "198.51.100.7:4242".parse().expect("an address");
    let v6: SocketAddr = "[2001:db8:7::7]:4242".parse().expect("an address");
    let mapped: SocketAddr = "[::ffff:198.51.100.7]:4242".parse().expect("an address");
    for (address, client) in [
        (net.b.v4_any(), v4),
        (net.b.v6_any(), v6),
        ("[::]:0".parse().expect("an address"), v4),
    ] {
        let listener = server.listen(address);
        let to = match address {
            SocketAddr::V6(any) if any.ip().is_unspecified() => {
                SocketAddr::new(net.b.v4, listener.local.port())
            }
            _ => listener.local,
        };
        let shown = if to.is_ipv4() && address.is_ipv6() {
            mapped
        } else {
            client
        };
        for _ in 0..2 {
            let (mut stream, from) = on_behalf(&net.b, &capture, netns, to, Some(client), None);
            let accepted = server.accept(listener.id);
            assert_eq!(accepted.peer, shown, "accept()");
            let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
            assert_eq!(canonical(accepted.local), to);
            assert_eq!(server.names(accepted.id).expect("names").peer, client);
            stream.write_all(b"question").expect("written");
            assert_eq!(server.read(accepted.id, 8), Ok("question".into()));
            // The daemon's end is closed: the program can still ask.
            drop(stream);
            assert_eq!(server.read(accepted.id, 1), Err(0));
            assert_eq!(server.names(accepted.id).expect("names").peer, client);
            server.close(accepted.id);
            // Somebody else, from the same port.
            let (_stream, again) = on_behalf(&net.b, &capture, netns, to, None, Some(from));
            assert_eq!(again, from);
            let accepted = server.accept(listener.id);
            assert_eq!(canonical(accepted.peer), from);
        }
    }
    // Taken back.
    let listener = server.listen(net.b.v4_any());
    let from: SocketAddr = "127.0.0.1:31999".parse().expect("an address");
    capture
        .present(netns, from, listener.local, v4)
        .expect("told");
    capture
        .withdraw(netns, from, listener.local)
        .expect("taken back");
    capture
        .withdraw(netns, from, listener.local)
        .expect("nothing to take back");
    let (_stream, from) = on_behalf(&net.b, &capture, netns, listener.local, None, Some(from));
    assert_eq!(server.accept(listener.id).peer, from);
    // A server elsewhere sees the daemon, as nobody can tell it.
    let listener = outside.listen(net.b.v4_any());
    let (_stream, from) = on_behalf(&net.b, &capture, netns, listener.local, Some(v4), None);
    assert_eq!(outside.accept(listener.id).peer, from);
    // An IPv4 socket has no way to show this.
    let listener = server.listen(net.b.v4_any());
    let (_stream, from) = on_behalf(&net.b, &capture, netns, listener.local, Some(v6), None);
    assert_eq!(server.accept(listener.id).peer, from);
}

/// Runs a program in a cgroup and a network namespace.
fn run_in(group: &Group, host: &Host, program: &Path, arguments: &[String]) -> Child {
    let script = "echo $$ > \"$1\"; shift; exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(group.path().join("cgroup.procs"))
        .arg(program)
        .args(arguments)
        .stdout(Stdio::piped());
    host.spawn(&mut command)
}

/// A program that cannot be preloaded: connects, sends a line, prints what it gets and what it
/// takes for the two ends.
fn static_program(test: &str, kind: &str, directory: &Path) -> Option<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let program = directory.join(kind);
    let mut build = match kind {
        "c" => Command::new("gcc"),
        _ => Command::new("go"),
    };
    match kind {
        "c" => build.args(["-static", "-O1", "-Wall", "-o"]),
        _ => build.env("CGO_ENABLED", "0").args(["build", "-o"]),
    };
    let source = sources.join(if kind == "c" { "client.c" } else { "client.go" });
    match build.arg(&program).arg(source).output() {
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{words}");
            Some(program)
        }
        Err(error) => {
            common::skip(test, &format!("needs {:?}: {error}", build.get_program()));
            None
        }
    }
}

fn static_programs_are_captured(test: &str, kind: &str) {
    if !can_run(test) {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let directory = std::env::temp_dir().join(format!("sluice-bpf-{kind}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let program = static_program(test, kind, &directory);
    let ends = [
        (scene.net.b.v4, scene.net.a.v4),
        (scene.net.b.v6, scene.net.a.v6),
    ];
    for (address, source) in ends {
        let Some(program) = &program else {
            break;
        };
        let to = SocketAddr::new(address, 8080);
        let arguments = [address.to_string(), "8080".into()];
        let child = run_in(&scene.group, &scene.net.a, program, &arguments);
        let (mut stream, original) = scene.daemon.accept(&scene.capture, to.is_ipv6());
        assert_eq!(original.map(|original| original.destination), Some(to));
        assert_eq!(read(&mut stream, 6), "hello\n");
        stream.write_all(b"HELLO\n").expect("written");
        let port = stream.peer_addr().expect("a name").port();
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout);
        let source = SocketAddr::new(source, port);
        assert_eq!(text, format!("HELLO\n{to}\n{source}\n"));
    }
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn a_static_c_program_is_captured() {
    static_programs_are_captured("a_static_c_program_is_captured", "c");
}

#[test]
fn a_go_program_is_captured() {
    static_programs_are_captured("a_go_program_is_captured", "go");
}
