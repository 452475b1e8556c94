//! `kernel/rdma` between two guests of one window, and by pyverbs, the tests of rdma-core.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, skip, trial};

use crate::guest::{Guest, serve};
use crate::rdma;
use crate::sure;

const SUITE: &str = "bookworm-backports";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("rdma_between_guests_6_12", between_guests),
        trial("rdma_pyverbs_6_12", pyverbs),
    ]
}

/// The network device of the RoCE port, with the addresses of a host of this number.
fn addresses(number: u32) -> String {
    format!(
        "{SINCE}load\n{}\nip link set lo up\nnet=$(basename /sys/class/infiniband/sluice0/device/net/*)\n\
         ip addr add 10.9.0.{number}/24 dev $net\nip addr add fd09::{number}/64 dev $net nodad\n\
         ip link set $net up\nfor gid in ffff:0a09:000{number} fd09:; do\n\
         until grep -qs $gid /sys/class/infiniband/sluice0/ports/2/gids/*; do sleep 0.1; done\ndone\n",
        rdma::LOAD
    )
}

/// How long a guest has run, to be told beside what was done by then.
const SINCE: &str = "since() { read -r up rest </proc/uptime; echo $up s; }\n";

/// Servers and clients, each until it has found the other one.
const PAIRS: [(&str, &str); 4] = [
    (
        "rping -s -a 10.9.0.1 -C 20 -S 3000",
        "rping -c -a 10.9.0.1 -C 20 -S 3000 -V",
    ),
    ("rping -s -a fd09::1 -C 5", "rping -c -a fd09::1 -C 5 -V"),
    (
        "ucmatose -b 10.9.0.1 -C 20 -S 9000",
        "ucmatose -s 10.9.0.1 -C 20 -S 9000",
    ),
    ("udaddy -b 10.9.0.1", "udaddy -s 10.9.0.1"),
];

/// A program whose peer's host is gone ends, with what it has asked for. Where it has asked for nothing it is told that its receives
/// are flushed, and that its queue pair has failed; rping waits for the connection manager then, as it does on an adapter.
const BEREAVED: &str = "\
client=$!
until ! kill -0 $client 2>/dev/null || rdma resource show qp | grep 'state ERR' | grep -q rping; do sleep 0.1; done
sleep 1
if kill $client 2>/dev/null; then echo told of its queue pair; fi
fails wait $client
";

/// A guest serves, and is switched off under the last connection, of which the other one's program hears.
fn between_guests() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let mut serves = addresses(1);
    let mut asks = addresses(2);
    for (serve, ask) in PAIRS {
        serves += &format!(
            "until timeout 60 {serve} >/run/said 2>&1; do sleep 0.2; done\necho \"served: {serve}\"\n"
        );
        asks += &format!(
            "for try in $(seq 60); do\n\
             if timeout 60 {ask} >/run/said 2>&1; then echo \"well: {ask} (try $try, $(since))\"; break; fi\nsleep 0.5\ndone\n\
             [ $try -lt 60 ] || {{ cat /run/said; exit 1; }}\n"
        );
    }
    serves += "rping -s -P -a 10.9.0.1 &\nwait\n";
    asks += &format!(
        "until timeout 10 rping -c -a 10.9.0.1 -C 1; do sleep 0.5; done\n\
             rping -c -a 10.9.0.1 -v >/run/said 2>&1 &\nuntil [ -s /run/said ]; do sleep 0.1; done\necho \"under=way ($(since))\"\n\
             {BEREAVED}echo bereaved=ok\nrmmod sluice_rdma\n$USER unlent $DEVICE\nrmmod sluice_window\nnothing_left\n"
    );
    let device = || Some((&server, 1));
    let guest = |name: &str, script: &str| -> Verdict<Guest> {
        let folder = place.path().join(name);
        std::fs::create_dir(&folder)?;
        rdma::boot(&folder, device(), SUITE, script, None)
    };
    let serving = guest("serving", &serves)?;
    let console = guest("asking", &asks)?.outlive(serving)?;
    sure(console.contains("bereaved=ok"), console)
}

/// Debian puts the tests of pyverbs among the documents, compressed.
const PYVERBS_TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// Those of which something is supported here (docs/kernel.md).
const PYVERBS: &str = "test_addr test_atomic test_cq test_cq_events test_cqex test_qpex test_device test_mr test_pd test_qp test_rdmacm";
/// One of rdma_cm's takes the first port for the one that messages came by, and here addresses are of the second.
const PORT_OF_MESSAGES: &str =
    "sed -i 's/wc=wc, port_num=1/wc=wc, port_num=2/' tests/rdmacm_utils.py";
/// What passes of them at least.
const PASSED_MIN: usize = 75;

fn pyverbs() -> Verdict {
    if !Path::new(PYVERBS_TESTS).is_dir() {
        return skip("python3-pyverbs is not installed; scripts/setup test");
    }
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let script = format!(
        "{}cp -r {PYVERBS_TESTS} /run/tests\ngunzip -rf /run/tests\ncd /run\n{PORT_OF_MESSAGES}\n\
         PYTHONPATH=/run:/run/tests timeout 300 /usr/bin/python3 tests/run_tests.py -v --dev sluice0 {PYVERBS} >/run/said 2>&1 || \
         {{ cat /run/said; exit 1; }}\n\
         echo passed=$(grep -c '\\.\\.\\. ok$' /run/said)\ntail -n 3 /run/said\n\
         cd /\nrmmod sluice_rdma\nrmmod sluice_window\nnothing_left\n",
        addresses(1)
    );
    // Two devices, as each waits for a peer before it begins.
    let mut guest = rdma::boot(place.path(), Some((&server, 2)), SUITE, &script, None)?;
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    let passed = console
        .lines()
        .find_map(|line| line.strip_prefix("passed=")?.trim().parse::<usize>().ok());
    sure(passed.is_some_and(|passed| passed >= PASSED_MIN), console)
}
