//! The library's messages go to standard error and nowhere else, whatever has its number.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sluice_tests::job::run;
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::suite::{check, ensure};

const LIMIT: Duration = Duration::from_secs(60);

/// Closes standard error, has a connection and then a file in its place, and goes on talking.
const SCRIPT: &str = r#"
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
if len(sys.argv) > 1: os.close(2)
connected = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
def talk(a, b):
    for number in range(100):
        if number == 20: time.sleep(0.1)
        for one, other in ((a, b), (b, a)):
            one.sendall(b"%08d" % number)
            got = b""
            while len(got) < 8: got += other.recv(8 - len(got))
            if got != b"%08d" % number: sys.exit("a message arrived changed")
place = connected.fileno()
talk(connected, accepted)
if len(sys.argv) == 1: sys.exit()
connected.close()
data = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
talk(socket.create_connection(listener.getsockname()), listener.accept()[0])
print(place, data)
"#;

#[test]
fn a_connection_or_a_file_with_its_number_gets_no_messages() {
    check("a_connection_or_a_file_with_its_number", || {
        let mut lab = Lab::with_library()?;
        lab.announce_at_once();
        let data = lab.path().join("data");
        let talk = |data: Option<&Path>| {
            let mut command = lab.command(Mode::Accelerated, "python3");
            command.args(["-c", SCRIPT]).args(data);
            command.env("SLUICE_LOG", "debug");
            run(command, lab.path(), "python3", LIMIT)?.success()
        };
        let outcome = talk(None)?;
        let said = String::from_utf8_lossy(&outcome.stderr);
        ensure(said.contains("sluice["), || outcome.describe())?;
        let outcome = talk(Some(&data))?;
        ensure(outcome.text() == "2 2\n", || outcome.describe())?;
        let written = fs::read(&data)?;
        ensure(written.is_empty(), || {
            String::from_utf8_lossy(&written).into_owned()
        })?;
        lab.require_lanes()
    });
}
