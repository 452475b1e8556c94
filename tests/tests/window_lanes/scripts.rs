//! Small programs, for what the others do not do.

use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::stream::await_port;
use sluice_tests::suite::{Verdict, ensure};

use crate::stage::Stage;

/// A server and its client; each prints `right` when it has seen what it must.
#[derive(Clone, Copy, Debug)]
pub struct Scripts {
    server: &'static str,
    client: &'static str,
}

/// The client sends, half closes, and reads what comes back to its end, many times over.
pub const HALF_CLOSE: Scripts = Scripts {
    server: "
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print('port', listener.getsockname()[1], flush=True)
for _ in range(40):
    one, _ = listener.accept()
    one.sendall(b'hello')
    got = b''.join(iter(lambda: one.recv(1 << 16), b''))
    one.sendall(got)
    one.close()
print('right')
",
    client: "
import socket, sys
for round in range(40):
    one = socket.create_connection((sys.argv[1], int(sys.argv[3])))
    assert one.recv(5, socket.MSG_WAITALL) == b'hello'
    sent = bytes((round + i * 7) % 256 for i in range(20000 * (round + 1)))
    for at in range(0, len(sent), 1 + round * 577):
        one.sendall(sent[at:at + 1 + round * 577])
        if at > 30000: one.sendall(sent[at + 1 + round * 577:]); break
    one.shutdown(socket.SHUT_WR)
    assert b''.join(iter(lambda: one.recv(1 << 16), b'')) == sent, round
print('right')
",
};

/// The client goes to and fro, and then resets the connection: the server sees that.
pub const RESET: Scripts = Scripts {
    server: "
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print('port', listener.getsockname()[1], flush=True)
for _ in range(20):
    one, _ = listener.accept()
    try:
        while data := one.recv(100, socket.MSG_WAITALL): one.sendall(data)
        sys.exit('an end in order')
    except ConnectionResetError:
        pass
    one.close()
print('right')
",
    client: "
import socket, struct, sys
for round in range(20):
    one = socket.create_connection((sys.argv[1], int(sys.argv[3])))
    for turn in range(200):
        one.sendall(bytes([turn]) * 100)
        assert one.recv(100, socket.MSG_WAITALL) == bytes([turn]) * 100
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    one.close()
print('right')
",
};

/// Writes anything anywhere in the window, for so many seconds.
pub const SCRIBBLER: &str = "
import os, random, socket, struct, sys, time
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[2])
memory = None
while memory is None:
    number, fds, _, _ = socket.recv_fds(server, 8, 1)
    if struct.unpack('<q', number)[0] == -1: memory = fds[0]
size = os.fstat(memory).st_size
random.seed(1)
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    for _ in range(200):
        # The pages of peers and the first pieces are where most is.
        at = random.randrange(size) if random.random() < 0.3 else random.randrange(2) * size // 2 + random.randrange(1 << 21)
        os.pwrite(memory, random.choice([b'\\0' * 8, b'\\xff' * 8, os.urandom(8), os.urandom(4096)]), min(at & ~7, size - 4096))
";

/// Has everything that the hosts say to each other in the window read as ones, until there is a file.
pub const CUTTER: &str = "
import os, socket, struct, sys, time
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[2])
memory = None
while memory is None:
    number, fds, _, _ = socket.recv_fds(server, 8, 1)
    if struct.unpack('<q', number)[0] == -1: memory = fds[0]
magic, version, kind, hosts, slot_bytes = struct.unpack('<8s4Q', os.pread(memory, 40, 0))
assert (magic, version, kind, hosts) == (b'SLUICEWN', 1, 1, 2)
while not os.path.exists(sys.argv[3]):
    for slot in range(hosts):
        os.pwrite(memory, b'\\xff' * (hosts * 16384), 4096 + slot * slot_bytes)
    time.sleep(0.001)
";

pub fn both(scripts: Scripts) -> Verdict {
    let stage = Stage::new(&["root"])?;
    // The programs do not wait for lanes, and have ended before the first one if sluiced got no processor.
    stage.two.run_until_ring_bytes(|| talk(&stage, scripts))?;
    stage.require_direct()?;
    stage.await_all_back()
}

fn talk(stage: &Stage, scripts: Scripts) -> Verdict {
    let two = &stage.two;
    let command = stage.script(Side::Right, true, scripts.server, &[])?;
    let mut server = two.start_program(command, "server")?;
    let port = await_port(&mut server, LIMIT)?.to_string();
    let command = stage.script(Side::Left, true, scripts.client, &[&port])?;
    let client = two.run_program(command, "client")?;
    let server = server.finish(LIMIT)?.success()?.text();
    ensure(client.contains("right") && server.contains("right"), || {
        format!("{client}\n{server}")
    })
}
