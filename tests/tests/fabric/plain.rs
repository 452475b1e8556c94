//! Programs that cannot be preloaded, where nothing is captured, and readers that sleep.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::apps::{Linked, compile_go};
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::Job;
use sluice_tests::slow;
use sluice_tests::stream::await_port;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::hosts::{Two, Way};
use crate::programs::WAYS;

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("go/both", || go(End::Go, End::Go)),
        trial("go/server", || go(End::Go, End::Python)),
        trial("go/client", || go(End::Python, End::Go)),
    ];
    for way in WAYS.into_iter().filter(|way| way.family == 4) {
        trials.push(trial(format!("slow_reader/{}", way.device), move || {
            slow_reader(way)
        }));
    }
    trials
}

/// What a connection's end is; all run under `sluice run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Linked statically.
    Go,
    Python,
}

/// As `tests/apps/go/ends.go`: says `hello`, and echoes until the end.
const SERVER: &str = "
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print('port', listener.getsockname()[1], flush=True)
while True:
    one, _ = listener.accept()
    one.sendall(b'hello')
    while data := one.recv(1 << 16):
        one.sendall(data)
    one.close()
";

/// Its client: sends so many bytes, half closes, and checks what comes back.
const CLIENT: &str = "
import socket, sys, threading
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
assert one.recv(5, socket.MSG_WAITALL) == b'hello'
sent = bytes(i * 7 % 256 for i in range(int(sys.argv[3])))
def send():
    one.sendall(sent)
    one.shutdown(socket.SHUT_WR)
thread = threading.Thread(target=send)
thread.start()
got = b''.join(iter(lambda: one.recv(1 << 16), b''))
thread.join()
assert got == sent
print('checked', len(got))
";

const BYTES: &str = "3000000";

fn python() -> Verdict<PathBuf> {
    let python = PathBuf::from("/usr/bin/python3");
    if python.exists() {
        Ok(python)
    } else {
        skip("python3 is not installed")
    }
}

/// Its connections stay on TCP, whatever the other end is, and are as they would be without Sluice.
fn go(server: End, client: End) -> Verdict {
    let two = WAYS[0].set_up()?;
    let ends = compile_go("ends.go", Linked::Statically, two.dir())?;
    let address = two.address(Side::Right);
    let serve = |end| -> Verdict<Job> {
        let command = match end {
            End::Go => {
                let mut command = two.program(Side::Right, true, &ends);
                command
                    .arg("server")
                    .arg(SocketAddr::new(address, 0).to_string());
                command
            }
            End::Python => {
                let mut command = two.program(Side::Right, true, &python()?);
                command.args(["-c", SERVER]).arg(address.to_string());
                command
            }
        };
        two.start_program(command, "server")
    };
    let mut server = serve(server)?;
    let port = await_port(&mut server, LIMIT)?;
    let command = match client {
        End::Go => {
            let mut command = two.program(Side::Left, true, &ends);
            let to = SocketAddr::new(address, port).to_string();
            command.args(["client", &to, BYTES]);
            command
        }
        End::Python => {
            let mut command = two.program(Side::Left, true, &python()?);
            command.args(["-c", CLIENT]).arg(address.to_string());
            command.arg(port.to_string()).arg(BYTES);
            command
        }
    };
    let said = two.run_program(command, "client")?;
    ensure(said.contains(&format!("checked {BYTES}")), || said.clone())?;
    server.stop(LIMIT)?;
    let totals = two.totals()?;
    ensure(totals.lane_bytes() == 0, || format!("{totals:?}"))
}

/// Bytes that are written while the reader sleeps and afterwards; the document that began this wrote
/// 100 GB, of which 50 GB came to lie in the kernel.
const TOTAL: u64 = 400_000_000;

/// What a process may grow by: rings, the buffers of a device, and what Python makes of it.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// While a reader sleeps its writer is held back, and nobody keeps what it would have read.
fn slow_reader(way: Way) -> Verdict {
    let two = way.set_up()?;
    let daemon = |side| -> Verdict<u64> { slow::resident_bytes(two.daemon(side)?.id()) };
    let before = [daemon(Side::Left)?, daemon(Side::Right)?];
    let address = two.address(Side::Right).to_string();
    let program = |side| {
        let two: &Two = &two;
        move |python: &Path| two.program(side, true, python)
    };
    let (reader, writer) = (program(Side::Right), program(Side::Left));
    let sleeper = slow::start(&address, TOTAL, two.dir(), LIMIT, reader, writer)?;
    for side in SIDES {
        let (queued, sockets) = slow::queued_bytes(two.host(side), two.dir(), LIMIT)?;
        let most = sockets * slow::queues_max()?;
        ensure(queued <= most, || {
            format!("{queued} bytes in {sockets} sockets")
        })?;
        let (now, before) = (daemon(side)?, before[side as usize]);
        ensure(now <= before + GROWTH_BYTES_MAX, || {
            format!("sluiced had {before} bytes, and has {now}")
        })?;
    }
    for job in [&sleeper.reader, &sleeper.writer] {
        let now = slow::resident_bytes(job.id())?;
        ensure(now <= 2 * GROWTH_BYTES_MAX, || {
            format!("a program has {now} bytes")
        })?;
    }
    sleeper.wake(LIMIT)?;
    two.require_ring_bytes()
}
