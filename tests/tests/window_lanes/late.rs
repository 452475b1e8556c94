//! A forked child that goes on when its parent has ended: what it still has mapped is nobody else's.

use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::wait_until;
use sluice_tests::stream::{Transfer, await_port};
use sluice_tests::suite::{Verdict, ensure};

use crate::stage::{CONNECTIONS, RECORDS, Stage};

/// Transfers of other pairs of programs while the child writes.
const TRANSFERS: usize = 3;

/// Words: the address, the window's socket, a file, `listen` or the port. Both make two connections; each
/// goes to and fro until it has a lane.
const BOTH: &str = "
import os, socket, sys
address, _, file, port = sys.argv[1:]
listener = socket.create_server((address, 0)) if port == 'listen' else None
if listener: print('port', listener.getsockname()[1], flush=True)
def join():
    if listener: return listener.accept()[0]
    return socket.create_connection((address, int(port)))
def turns(one):
    for turn in range(200):
        if listener: one.sendall(bytes([turn]) * 100)
        assert one.recv(100, socket.MSG_WAITALL) == bytes([turn]) * 100
        if not listener: one.sendall(bytes([turn]) * 100)
# Daemons that have little of the processors may not have agreed on a lane yet.
def turns_until(one, is_there):
    while True:
        turns(one)
        if is_there(): break
        one.sendall(b'm')
    one.sendall(b'.')
def turns_for(one):
    while True:
        turns(one)
        if one.recv(1) == b'.': break
";

/// Ends when the other program's child has its connection, too.
const OTHER: &str = "
one = join(); turns_for(one)
two = join(); turns(two)
two.recv(1)
";

/// Forks. The child makes a connection of its own, by which sluiced knows it, and its parent ends. Then it
/// writes to the memory of the inherited connection's lanes for as long as there is no file, as
/// a writer does that was stopped in the middle of a copy and goes on.
const HOLDER: &str = "
import ctypes, time
one = join()
def mapped():
    lines = [line.split()[0].split('-') for line in open('/proc/self/maps') if 'sluice-window' in line]
    return [(int(start, 16), int(end, 16)) for start, end in lines]
turns_until(one, mapped)
pieces = mapped()
reader, writer = os.pipe()
parent = os.getpid()
if os.fork():
    os.read(reader, 1)
    os._exit(0)
two = join(); turns(two)
two.sendall(b'x')
os.write(writer, b'x')
while os.getppid() == parent: pass
print('alone', flush=True)
until = time.monotonic() + 60
while not os.path.exists(file) and time.monotonic() < until:
    for start, end in pieces:
        ctypes.memset(start, 0xa5, end - start)
print('over', flush=True)
";

/// The child of a program on this side goes on, when both programs have ended.
pub fn child(side: Side) -> Verdict {
    let stage = Stage::new(&["root"])?;
    let two = &stage.two;
    let over = two.dir().join("over");
    let file = over.to_string_lossy().into_owned();
    let text = |at: Side| BOTH.to_owned() + if at == side { HOLDER } else { OTHER };
    let start = |at: Side, port: &str| {
        let command = stage.script(at, true, &text(at), &[&file, port])?;
        two.start_program(command, at.name())
    };
    let mut listener = start(Side::Right, "listen")?;
    let port = await_port(&mut listener, LIMIT)?.to_string();
    let connector = start(Side::Left, &port)?;
    let (holder, other) = match side {
        Side::Left => (connector, listener),
        Side::Right => (listener, connector),
    };
    other.finish(LIMIT)?.success()?;
    // Of the child alone: its own connection, and its output.
    let output = holder.stdout_path().to_owned();
    let has_said = |word: &str| {
        let said = std::fs::read_to_string(&output).unwrap_or_default();
        Ok(said.contains(word))
    };
    ensure(wait_until(LIMIT, || has_said("alone"))?, || {
        holder.describe()
    })?;
    let verdict = others(&stage, side);
    std::fs::write(&over, "")?;
    ensure(wait_until(LIMIT, || has_said("over"))?, || {
        holder.describe()
    })?;
    holder.finish(LIMIT)?.success()?;
    verdict?;
    // The kernel says when it has ended, and nobody else does.
    stage.await_all_back()
}

fn others(stage: &Stage, side: Side) -> Verdict {
    // Both daemons know by then that the two programs are gone, and one that there is the child.
    let are_known = || {
        let lanes = SIDES.map(|at| stage.lanes(at).unwrap_or(u64::MAX));
        Ok(
            lanes[SIDES.iter().position(|at| *at == side).unwrap_or(0)] == 1
                && lanes.iter().sum::<u64>() == 1,
        )
    };
    ensure(wait_until(LIMIT, are_known)?, || stage.two.describe())?;
    for _ in 0..TRANSFERS {
        stage
            .flow(Transfer {
                server: "thread",
                connections: CONNECTIONS,
                records: RECORDS,
            })?
            .check_complete(LIMIT)?;
    }
    stage.require_direct()
}
