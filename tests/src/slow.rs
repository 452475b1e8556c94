//! A reader that sleeps while its peer writes whatever is taken, and what that costs: memory of the
//! kernel in the sockets of a host, and of processes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::hosts::Host;
use crate::job::{Job, find_program, run};
use crate::suite::{Verdict, ensure, fail, skip};

const PYTHON: &str = "/usr/bin/python3";

/// Answers single bytes until another one than `?` comes, sleeps until there is the file, and then reads
/// to the end.
const READER: &str = "
import os, socket, sys, time, zlib
listener = socket.create_server((sys.argv[1], 0), family=socket.AF_INET)
print('port', listener.getsockname()[1], flush=True)
one, _ = listener.accept()
while one.recv(1) == b'?':
    one.send(b'!')
print('sleeps', flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
count, check = 0, 0
while True:
    data = one.recv(1 << 18)
    if not data:
        break
    count, check = count + len(data), zlib.crc32(data, check)
print('got', count, check, flush=True)
one.close()
";

/// Asks single bytes, then writes what is taken; says so each time that nothing was for a second, and
/// goes on until it has written all.
const WRITER: &str = "
import select, socket, sys, zlib
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for _ in range(300):
    one.send(b'?')
    assert one.recv(1) == b'!'
one.send(b'.')
one.setblocking(False)
total, piece = int(sys.argv[3]), bytes(range(251)) * 1000
ready = select.poll()
ready.register(one, select.POLLOUT)
count, check = 0, 0
while count < total:
    at = count % len(piece)
    try:
        taken = one.send(piece[at:at + (1 << 16)])
    except BlockingIOError:
        if not ready.poll(1000):
            print('held back at', count, flush=True)
        continue
    check = zlib.crc32(piece[at:at + taken], check)
    count += taken
one.setblocking(True)
one.shutdown(socket.SHUT_WR)
print('sent', count, check, flush=True)
assert one.recv(1) == b''
";

/// Both ends, while the reader sleeps.
pub struct Sleeper<'a> {
    pub reader: Job,
    pub writer: Job,
    dir: &'a Path,
}

/// Starts the ends, of which the reader is on a host with this address. Commands are made from
/// Python's path. Returns when nothing was taken for three seconds.
pub fn start<'a>(
    address: &str,
    total: u64,
    dir: &'a Path,
    limit: Duration,
    reader: impl FnOnce(&Path) -> Command,
    writer: impl FnOnce(&Path) -> Command,
) -> Verdict<Sleeper<'a>> {
    let python = Path::new(PYTHON);
    if !python.exists() {
        return skip("python3 is not installed");
    }
    let mut command = reader(python);
    command.args(["-c", READER, address]).arg(dir.join("wake"));
    let mut reader = Job::start(command, dir, "slow-reader")?;
    let port = crate::stream::await_port(&mut reader, limit)?.to_string();
    let mut command = writer(python);
    command.args(["-c", WRITER, address, &port, &total.to_string()]);
    let mut writer = Job::start(command, dir, "slow-writer")?;
    let output = writer.stdout_path().to_owned();
    let held_back = || {
        let text = fs::read_to_string(&output).unwrap_or_default();
        text.matches("held back").count() >= 3
    };
    writer.await_ready(limit, "pause", held_back)?;
    Ok(Sleeper {
        reader,
        writer,
        dir,
    })
}

impl Sleeper<'_> {
    /// Lets the reader go on; everything arrives.
    pub fn wake(self, limit: Duration) -> Verdict {
        fs::write(self.dir.join("wake"), "")?;
        let sent = self.writer.finish(limit)?.success()?.text();
        let got = self.reader.finish(limit)?.success()?.text();
        let last = |text: &str, word: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(word));
            line.map(str::to_owned)
        };
        let (sent, got) = (last(&sent, "sent "), last(&got, "got "));
        ensure(sent.is_some() && sent == got, || {
            format!("sent {sent:?}, got {got:?}")
        })
    }
}

/// Bytes of the kernel in queues of all TCP sockets of a host, as it accounts for them, and how many
/// sockets those are (`skmem` of ss(8): what is received, and what is to be sent).
pub fn queued_bytes(host: &Host, dir: &Path, limit: Duration) -> Verdict<(u64, u64)> {
    let Some(ss) = find_program("ss") else {
        return skip("ss (iproute2) is not installed");
    };
    let mut command = host.command(ss);
    command.args(["--tcp", "--memory", "--numeric", "--no-header"]);
    let text = run(command, dir, "ss", limit)?.success()?.text();
    let (mut bytes, mut sockets) = (0, 0);
    for fields in text.split("skmem:(").skip(1) {
        sockets += 1;
        let fields = fields.split_once(')').map_or(fields, |(fields, _)| fields);
        for field in fields.split(',') {
            // rmem_alloc and wmem_queued; rb and tb are limits.
            let number = match field.split_at_checked(1) {
                Some(("r" | "w", number)) => number.parse::<u64>().unwrap_or(0),
                _ => 0,
            };
            bytes += number;
        }
    }
    if sockets == 0 {
        return fail(format!("ss says nothing of memory: {text}"));
    }
    Ok((bytes, sockets))
}

/// What the kernel allows the queues of one TCP socket, bytes (`tcp_rmem` and `tcp_wmem`, tcp(7)).
pub fn queues_max() -> Verdict<u64> {
    let mut sum = 0;
    for name in ["tcp_rmem", "tcp_wmem"] {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))?;
        let Some(Ok(most)) = text.split_whitespace().last().map(str::parse::<u64>) else {
            return fail(text);
        };
        sum += most;
    }
    Ok(sum)
}

/// Memory of a process, bytes, shared memory as well (`VmRSS` of proc_pid_status(5)).
pub fn resident_bytes(pid: u32) -> Verdict<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    match kib {
        Some(kib) => Ok(kib * 1024),
        None => fail(status),
    }
}
