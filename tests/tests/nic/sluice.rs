//! Sluice itself over two functions of the card, which read and write its packet memory themselves:
//! verbs and sockets between two hosts that are namespaces of a guest.

use libtest_mimic::Trial;

use sluice_tests::lab::find_sluice;
use sluice_tests::nic::{self, Report, Settings};
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::Own;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("sluice_verbs_zero_copy", verbs),
        trial("sluice_sockets_zero_copy", sockets),
    ]
}

/// What both scripts begin with: `here` and `far` run a program on either host, `listens PORT` waits
/// for one on the other, `zero_copy` says what Sluice finds in the card and in how many packets.
const HOSTS: &str = r#"
here() { "$@"; }
far() { ip netns exec far "$@"; }
listens() {
    local tries=0
    until [ -n "$(far ss -Hltn "sport = :$1")" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "nobody listens at $1"; return 1; }
        sleep 0.2
    done
}
nics
both
doctor=$($SLUICE doctor --interface nic0) || :
case $doctor in *zero-copy:*) echo doctor=zero-copy ;; *) echo "$doctor" ;; esac
"#;

fn script(text: &str) -> Verdict<String> {
    Ok(format!(
        "SLUICE={}\n{HOSTS}\n{text}",
        find_sluice()?.display()
    ))
}

fn no_complaint(report: &Report) -> Verdict {
    report.check(
        report.value("doctor") == Some("zero-copy"),
        "doctor does not call it zero-copy",
    )?;
    for name in ["bad", "alloc_failed"] {
        report.check(report.number(name)? == 0, name)?;
    }
    Ok(())
}

const COMPLAINTS: &str = r#"
echo bad=$(stat nic0 bad) alloc_failed=$(stat nic0 alloc_failed)
"#;

/// Our own program, which checks every byte of every kind of request, and perftest.
fn verbs() -> Verdict {
    let place = tempfile::tempdir()?;
    let traffic = Own::Traffic.compile(place.path())?;
    let text = format!(
        r#"
        meet() {{
            port=$1
            shift
            far $SLUICE verbs --device roce -- "$@" >/tmp/server 2>&1 &
            server=$!
            listens $port
            here $SLUICE verbs --device roce -- "$@" 10.9.0.2 >/tmp/client 2>&1 || {{ cat /tmp/client /tmp/server; return 1; }}
            wait $server || {{ cat /tmp/server; return 1; }}
        }}
        meet 18515 {} -p 18515 -n 400 -b 20000 && echo traffic=1
        meet 18516 ib_send_bw -F -p 18516 -u 18 -n 200 -s 4096 && echo ib_send_bw=1
        meet 18517 ib_write_bw -F -p 18517 -u 18 -n 200 -s 65536 && echo ib_write_bw=1
        echo in_packets=$(stat nic0 xsk_packets)
        echo out_packets=$(ethtool -S nic0 | sed -n 's/^ *xdp_tx[0-9]*_xsk_packets: //p' | awk '{{ s += $1 }} END {{ print s + 0 }}')
        {COMPLAINTS}
        "#,
        traffic.display()
    );
    let report = nic::run(Settings::default(), &script(&text)?)?;
    for name in ["traffic", "ib_send_bw", "ib_write_bw"] {
        report.check(report.value(name) == Some("1"), name)?;
    }
    // 200 messages of 64 KiB alone are more than ten thousand packets.
    report.check(report.number("out_packets")? > 5000, "zero copy out")?;
    report.check(report.number("in_packets")? > 200, "zero copy in")?;
    no_complaint(&report)
}

/// A daemon on each host, and a connection for which the daemons' verbs have a lane. Whether its bytes take it is
/// chance in an emulated machine (docs/nic.md); offers of it go by the card.
fn sockets() -> Verdict {
    let text = format!(
        r#"
        mkdir -p /tmp/hosts
        cd /tmp/hosts
        printf '%064d\n' 5 >key
        chmod 600 key
        for host in 1 2; do
            cat >$host.toml <<END
[daemon]
name = "host$host"
listen = ["10.9.0.$host"]
psk_file = "key"
[fabric]
device = "roce"
[[peer]]
name = "host$((3 - host))"
control = "10.9.0.$((3 - host))"
END
        done
        daemon() {{
            host=$1
            shift
            "$@" ${{SLUICE}}d --eager --socket /run/$host.sock --config /tmp/hosts/$host.toml
        }}
        daemon 1 &
        daemon1=$!
        daemon 2 far &
        daemon2=$!
        tries=0
        until $SLUICE status --socket /run/1.sock --json 2>/dev/null | jq -e '.daemons[0].status.fabric.peers[0].link == "up"' >/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || {{ $SLUICE status --socket /run/1.sock --json; exit 1; }}
            sleep 0.2
        done
        cat >server.py <<'END'
import hashlib, socket
with socket.create_server(("10.9.0.2", 7000)) as listener:
    peer, _ = listener.accept()
    while data := peer.recv(1 << 18, socket.MSG_WAITALL):
        peer.sendall(hashlib.sha256(data).digest())
END
        cat >client.py <<'END'
import hashlib, os, socket
peer = socket.create_connection(("10.9.0.2", 7000))
rounds = right = 0
while not os.path.exists("enough") and rounds < 5000:
    data = os.urandom(1 << 18)
    peer.sendall(data)
    right += peer.recv(32, socket.MSG_WAITALL) == hashlib.sha256(data).digest()
    rounds += 1
print("wrong=%d rounds=%d" % (rounds - right, rounds))
END
        out() {{ ethtool -S nic0 | sed -n 's/^ *xdp_tx[0-9]*_xsk_packets: //p' | awk '{{ s += $1 }} END {{ print s + 0 }}'; }}
        far $SLUICE run --socket /run/2.sock -- python3 server.py &
        server=$!
        listens 7000
        $SLUICE run --stats --socket /run/1.sock -- python3 client.py 2>&1 &
        client=$!
        # Offers come between two rounds, each in some packets.
        until [ $(out) -gt 1000 ] || ! [ -e /proc/$client ]; do sleep 0.2; done
        touch enough
        wait $client
        wait $server
        echo out_packets=$(out)
        echo in_packets=$(stat nic0 xsk_packets)
        kill $daemon1 $daemon2
        {COMPLAINTS}
        "#
    );
    let report = nic::run(Settings::default(), &script(&text)?)?;
    report.check(report.number("wrong")? == 0, "other bytes")?;
    report.check(
        report.console.contains("1 connection, 1 on a lane"),
        "the connection got no lane",
    )?;
    report.check(report.number("out_packets")? > 1000, "zero copy out")?;
    report.check(report.number("in_packets")? > 50, "zero copy in")?;
    no_complaint(&report)
}
