//! Programs of others on the card: the kernel's own tests of AF_XDP and of network drivers, and xdp-tools.

use std::path::PathBuf;

use libtest_mimic::Trial;

use sluice_tests::guest::module::guest_folder;
use sluice_tests::job::{command, find_program};
use sluice_tests::nic::{self, Report, Settings};
use sluice_tests::suite::{Verdict, skip, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("xskxceiver_both_modes", xskxceiver),
        trial("xdp_bench_and_xdp_filter", xdp_tools),
        trial("selftests_of_drivers", selftests),
    ]
}

/// What becomes of a test of xskxceiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    /// It says itself that it cannot be run.
    Skips,
    /// Not run: `docs/nic.md` says why.
    LeftOut,
}

/// Each test in its order, without a copy and with one.
const FATES: [(&str, Fate, Fate); 31] = {
    use Fate::{LeftOut, Passes, Skips};
    [
        ("SEND_RECEIVE", Passes, Passes),
        ("SEND_RECEIVE_2K_FRAME", Passes, Passes),
        ("SEND_RECEIVE_SINGLE_PKT", Passes, Passes),
        ("POLL_RX", Passes, Passes),
        ("POLL_TX", Passes, Passes),
        ("POLL_RXQ_FULL", Passes, Passes),
        ("POLL_TXQ_FULL", Passes, Passes),
        ("SEND_RECEIVE_UNALIGNED", Passes, Passes),
        ("ALIGNED_INV_DESC", Passes, Passes),
        ("ALIGNED_INV_DESC_2K_FRAME_SIZE", Passes, Passes),
        ("UNALIGNED_INV_DESC", Passes, Passes),
        ("UNALIGNED_INV_DESC_4001_FRAME_SIZE", Passes, Passes),
        ("UMEM_HEADROOM", Passes, Passes),
        ("TEARDOWN", Passes, Passes),
        ("BIDIRECTIONAL", Passes, Passes),
        ("STAT_RX_DROPPED", Skips, Passes),
        ("STAT_TX_INVALID", Passes, Passes),
        ("STAT_RX_FULL", Passes, Passes),
        ("STAT_FILL_EMPTY", Passes, Passes),
        ("XDP_PROG_CLEANUP", Passes, Passes),
        ("XDP_DROP_HALF", Passes, Passes),
        ("XDP_SHARED_UMEM", Passes, Passes),
        ("XDP_METADATA_COPY", Passes, Passes),
        ("XDP_METADATA_COPY_MULTI_BUFF", Skips, Skips),
        ("SEND_RECEIVE_9K_PACKETS", Skips, Skips),
        ("SEND_RECEIVE_UNALIGNED_9K_PACKETS", Skips, Skips),
        ("ALIGNED_INV_DESC_MULTI_BUFF", Skips, Skips),
        ("UNALIGNED_INV_DESC_MULTI_BUFF", Skips, Skips),
        ("TOO_MANY_FRAGS", Skips, Skips),
        ("HW_SW_MIN_RING_SIZE", Passes, LeftOut),
        ("HW_SW_MAX_RING_SIZE", LeftOut, LeftOut),
    ]
};

fn xskxceiver_program() -> Verdict<PathBuf> {
    let script = guest_folder().join("xskxceiver");
    let output = command(script).arg("--path").output()?;
    let program = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
    if !program.with_file_name("stamp").is_file() {
        return skip(format!("no {}; scripts/setup test", program.display()));
    }
    Ok(program)
}

/// The lines `test MODE NUMBER FATE` of a run: the number is the place in the list.
fn fates(report: &Report, mode: &str) -> Vec<(usize, Fate)> {
    let lines = report.console.lines();
    let words = lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let mut found: Vec<_> = words
        .filter_map(|words| match words.as_slice() {
            ["test", its_mode, number, fate] if *its_mode == mode => {
                let fate = match *fate {
                    "passes" => Fate::Passes,
                    "skips" => Fate::Skips,
                    "left-out" => Fate::LeftOut,
                    _ => return None,
                };
                Some((number.parse().ok()?, fate))
            }
            _ => None,
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    found.dedup();
    found
}

/// All tests of the kernel's xskxceiver from one function to the other. Some compare counters a
/// millisecond after the last packet that they waited for: what fails is run again by itself, a few times.
fn xskxceiver() -> Verdict {
    let program = xskxceiver_program()?;
    let mut runs = String::new();
    for (mode, fate) in [("zc", 1), ("drv", 2)] {
        let left_out: Vec<_> = FATES
            .iter()
            .filter(|row| [row.1, row.2][fate - 1] == Fate::LeftOut)
            .map(|row| row.0)
            .collect();
        runs += &format!("run {mode} ' {} '\n", left_out.join("  "));
    }
    let script = format!(
        r#"
        TEST={}
        echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
        # Some tests want huge pages.
        echo 16 >/proc/sys/vm/nr_hugepages
        nics
        ethtool -L nic0 combined 1
        ethtool -L nic1 combined 1
        up nic0
        up nic1
        export THREAD_TMOUT=60
        # tell MODE: its lines as we want them; those of a failure are kept.
        tell() {{
            sed -n -e "s/^ok \([0-9]*\) PASS.*/test $1 \1 passes/p" \
                -e "s/^ok \([0-9]*\) # SKIP left out.*/test $1 \1 left-out/p" \
                -e "s/^ok \([0-9]*\) # SKIP.*/test $1 \1 skips/p" /tmp/told
        }}
        run() {{
            mode=$1
            LEFT_OUT=$2 $TEST -i nic0 -i nic1 -m $mode >/tmp/told 2>&1 || grep -v '^ok' /tmp/told
            tell $mode
            for number in $(sed -n 's/^not ok \([0-9]*\) .*/\1/p' /tmp/told); do
                for again in 1 2 3 4 5; do
                    $TEST -i nic0 -i nic1 -m $mode -t $((number - 1)) >/tmp/told 2>&1 || :
                    sed -i "s/^ok 1 /ok $number /" /tmp/told
                    tell $mode
                    if grep -q '^ok' /tmp/told; then break; fi
                done
            done
        }}
        {runs}
        echo bad=$(($(stat nic0 bad) + $(stat nic1 bad)))
        echo zero_copied=$(stat nic1 xsk_packets)
        rmmod opennic
        "#,
        program.display()
    );
    let report = nic::run(Settings::default(), &script)?;
    for (mode, place) in [("zc", 0), ("drv", 1)] {
        let wanted: Vec<_> = (1..)
            .zip(FATES.iter().map(|row| [row.1, row.2][place]))
            .collect();
        let found = fates(&report, mode);
        for (number, fate) in &wanted {
            let name = FATES.get(number - 1).map_or("", |row| row.0);
            report.check(
                found.contains(&(*number, *fate)),
                &format!("{mode}: not so that {name} {fate:?}"),
            )?;
        }
        report.check(found.len() == wanted.len(), "a test has two fates")?;
    }
    report.check(report.number("zero_copied")? > 10_000, "zero copy")?;
    report.check(report.number("bad")? == 0, "bad packets")
}

/// Their programs drop, send back and redirect; their filter drops what it is told to and nothing else.
fn xdp_tools() -> Verdict {
    for program in ["xdp-bench", "xdp-filter"] {
        if find_program(program).is_none() {
            return skip(format!("{program} is not installed; scripts/setup test"));
        }
    }
    let settings = Settings {
        in_turn: true,
        ports: &["gen:64,4,0", "open"],
        ..Settings::default()
    };
    let script = r#"
        mount -t bpf bpf /sys/fs/bpf 2>/dev/null || :
        nics
        ip link set nic0 address 02:00:00:00:00:01
        up nic1
        # grows COUNTER: waits until it is 1000 more than it was.
        grows() {
            local tries=0 was=$(stat nic0 $1)
            until [ $(stat nic0 $1) -gt $((was + 1000)) ]; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || { echo "$1 stays at $was"; cat /tmp/bench; return 1; }
                sleep 0.2
            done
        }
        # A program is loaded and goes while nothing comes, which leaves the guest time for it.
        loaded() {
            local tries=0
            until ip link show nic0 | grep -q prog/xdp; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || { echo "no program"; cat /tmp/bench; return 1; }
                sleep 0.2
            done
            up nic0
        }
        bench() {
            local job=$1
            xdp-bench "$@" -i 1 >/tmp/bench 2>&1 &
            local program=$!
            loaded
            grows xdp_$job
            ip link set nic0 down
            kill -INT $program
            wait $program && echo $job=1
        }
        bench drop nic0
        bench tx nic0
        bench redirect nic0 nic1
        xdp-filter load nic0 -m native -p allow -f udp
        loaded
        dropped=$(stat nic0 xdp_drop)
        # What comes is for port 9. One that nothing comes for first.
        xdp-filter port 10 -m dst -p udp
        grows xdp_pass
        [ $(stat nic0 xdp_drop) = $dropped ] && echo others_pass=1
        xdp-filter port 9 -m dst -p udp
        grows xdp_drop
        # What ran while the port was added ends soon.
        for look in 1 2 3 4 5; do
            passed=$(stat nic0 xdp_pass)
            grows xdp_drop
            if [ $(stat nic0 xdp_pass) = $passed ]; then echo told_drop=1; break; fi
        done
        xdp-filter port 9 -m dst -p udp -r
        grows xdp_pass && echo again=1
        ip link set nic0 down
        xdp-filter unload nic0
        rmmod opennic && echo removed=1
        "#;
    let report = nic::run(settings, script)?;
    for name in [
        "drop",
        "tx",
        "redirect",
        "others_pass",
        "told_drop",
        "again",
        "removed",
    ] {
        report.check(report.value(name) == Some("1"), name)?;
    }
    report.check(
        report.number("port0_tx")? > 500,
        "xdp-bench tx sent nothing",
    )?;
    report.check(
        report.number("port1_tx")? > 500,
        "xdp-bench redirect sent nothing",
    )
}

/// What becomes of each case of the kernel's tests of drivers. What the driver does not have is an expected failure
/// of theirs; docs/nic.md says of the others why they are not here.
const CASES: [(&str, &str); 7] = [
    ("queues.get_queues", ""),
    ("queues.addremove_queues", ""),
    ("stats.check_pause", "# XFAIL"),
    ("stats.check_fec", "# XFAIL"),
    ("stats.pkt_byte_sum", ""),
    ("stats.qstat_by_ifindex", ""),
    ("stats.check_down", ""),
];

/// The kernel's own tests of the queues that a driver tells of and of what it counts for each.
fn selftests() -> Verdict {
    let folder = xskxceiver_program()?.with_file_name("selftests");
    let python = "/usr/bin/python3";
    let yaml = command(python).args(["-c", "import yaml"]).output();
    if !yaml.is_ok_and(|output| output.status.success()) {
        return skip(format!("{python} has no module yaml; scripts/setup test"));
    }
    let script = format!(
        r#"
        nics
        both
        export NETIF=nic0 DISRUPTIVE=1 PYTHONDONTWRITEBYTECODE=1
        cd {}/tools/testing/selftests/drivers/net
        # Their exit status says no more than their lines.
        for test in queues stats; do {python} $test.py 2>&1 || :; done
        rmmod opennic && echo removed=1
        "#,
        folder.display()
    );
    let report = nic::run(Settings::default(), &script)?;
    for (case, remark) in CASES {
        let told = report.console.lines().any(|line| {
            let rest = line.trim_end().strip_prefix("ok ").unwrap_or_default();
            let words = rest.split_once(' ').map_or("", |(_, words)| words);
            words.strip_prefix(case).is_some_and(|said| {
                let said = said.trim_start();
                said == remark || !remark.is_empty() && said.starts_with(remark)
            })
        });
        report.check(told, &format!("not so that {case} passes {remark}"))?;
    }
    report.check(report.value("removed") == Some("1"), "not removed")
}
