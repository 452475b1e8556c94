//! Instructions of the driver for each packet (docs/nic.md): guests whose nanosecond is an
//! instruction, a source that always has the next packet, and the driver built with a count of the
//! cycles of NAPI.
//!
//! ```text
//! cargo run -p sluice-tests --example nic_figures -- FILE
//! ```
//!
//! `bench/nic` runs it and draws what it found. The file is written after each guest, and guests whose
//! figures it has are not run again.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use sluice_tests::nic::{self, Settings};
use sluice_tests::suite::{Problem, Verdict, fail};

/// One bar, or one point of a curve.
#[derive(Serialize, Deserialize)]
struct Figure {
    /// `fixed` buffers or page `pool`.
    build: String,
    /// Bytes of a frame; of TCP's, the most.
    bytes: u32,
    queues: u32,
    ring: u32,
    what: String,
    instructions: f64,
    packets: u64,
}

/// What a guest measures.
#[derive(Clone, Copy)]
struct Plan {
    build: &'static str,
    bytes: u32,
    queues: u32,
    rings: &'static [u32],
    /// The words behind `during`, and AF_XDP's jobs.
    verdicts: &'static [&'static str],
    jobs: &'static [&'static str],
    tcp: bool,
}

impl Plan {
    /// What it measures at each ring size.
    fn names(&self) -> Vec<String> {
        let verdicts = self.verdicts.iter().map(|verdict| {
            let name = verdict.split(':').next().unwrap_or_default();
            name.to_owned()
        });
        let modes = ["copy", "zerocopy"];
        let jobs = self.jobs.iter();
        let jobs = jobs.flat_map(|job| modes.map(|mode| format!("{job}-{mode}")));
        let tcp = self.tcp.then(|| "tcp".to_owned());
        verdicts.chain(jobs).chain(tcp).collect()
    }

    /// How many figures it makes.
    fn figures(&self) -> usize {
        self.names().len() * self.rings.len()
    }

    fn has(&self, figure: &Figure) -> bool {
        (figure.build.as_str(), figure.bytes, figure.queues)
            == (self.build, self.bytes, self.queues)
            && self.rings.contains(&figure.ring)
            && self.names().contains(&figure.what)
    }
}

const RING: &[u32] = &[1024];
/// Of a guest each: what fixed buffers take is much for one.
const RINGS: [&[u32]; 3] = [&[128, 512], &[2048], &[16384]];
const TCP_RINGS: &[u32] = &[128, 512, 1024, 2048, 16384];
const LENGTHS: [u32; 5] = [60, 252, 508, 1020, 1514];
const VERDICTS: &[&str] = &[
    "drop",
    "abort",
    "write-drop",
    "pass",
    "write-tx",
    "redirect:nic1",
];
const JOBS: &[&str] = &["drop", "forward"];

fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for build in ["pool", "fixed"] {
        let plan = Plan {
            build,
            bytes: 60,
            queues: 1,
            rings: RING,
            verdicts: VERDICTS,
            // Of AF_XDP's memory there is one kind.
            jobs: if build == "pool" { JOBS } else { &[] },
            tcp: false,
        };
        plans.extend(LENGTHS.map(|bytes| Plan { bytes, ..plan }));
        plans.extend(RINGS.map(|rings| Plan {
            rings,
            verdicts: &["drop", "pass", "write-tx", "redirect:nic1"],
            jobs: &[],
            ..plan
        }));
        plans.push(Plan {
            bytes: 1514,
            rings: TCP_RINGS,
            verdicts: &[],
            jobs: &[],
            tcp: true,
            ..plan
        });
    }
    for bytes in [60, 1514] {
        let plan = Plan {
            build: "pool",
            bytes,
            queues: 8,
            rings: RING,
            verdicts: VERDICTS,
            jobs: &[],
            tcp: false,
        };
        plans.push(plan);
        plans.extend([&JOBS[..1], &JOBS[1..]].map(|jobs| Plan {
            verdicts: &[],
            jobs,
            ..plan
        }));
    }
    plans
}

/// Counted by the device that receives: `reading DEVICE` prints cycles and packets of full runs.
const COUNTING: &str = r#"
    reading() {
        ethtool -S $1 | awk '/rx[0-9]+_poll_cycles/ { c += $2 } /rx[0-9]+_poll_packets/ { p += $2 } END { printf "%.0f %.0f", c, p }'
    }
    # since NAME DEVICE CYCLES PACKETS
    since() {
        set -- $1 $3 $4 $(reading $2)
        [ $5 -gt $3 ] || { echo "no full run for $1"; return 0; }
        echo "figure $ring $1 $(($4 - $2)) $(($5 - $3))"
    }
    # Counted only while the program is there: before and after it, packets go to the stack.
    during() {
        local name=$1 before
        shift
        "$@" >/dev/null &
        sleep 0.1
        before=$(reading nic0)
        sleep 0.06
        since $name nic0 $before
        kill $!
        wait $! 2>/dev/null || :
    }
    # The same for a program with sockets, which makes them while the device is down: under packets that
    # never pause its one processor has seconds of them between two steps of the program.
    sockets() {
        local name=$1 before tries=0
        shift
        ip link set nic0 down
        "$@" >/tmp/job &
        until grep -q bound /tmp/job; do
            tries=$((tries + 1))
            [ $tries -lt 500 ] || { echo "$name: sockets are not made"; return 1; }
            sleep 0.02
        done
        up nic0
        sleep 0.1
        before=$(reading nic0)
        sleep 0.06
        since $name nic0 $before
        ip link set nic0 down
        kill $!
        wait $! 2>/dev/null || :
    }
"#;

fn script(plan: &Plan) -> String {
    let rings = plan.rings.iter().map(u32::to_string).collect::<Vec<_>>();
    let rings = rings.join(" ");
    if plan.tcp {
        // A processor that is idle would skip the time in which the card works.
        return format!(
            r#"{COUNTING}
            nics
            both
            ip netns exec far ethtool -C nic1 rx-usecs 1000 rx-frames 192
            while :; do :; done &
            idler=$!
            renice 19 $idler >/dev/null
            ip netns exec far iperf3 -s -D
            reading() {{
                ip netns exec far ethtool -S nic1 |
                    awk '/rx0_poll_cycles/ {{ c = $2 }} /rx0_poll_packets/ {{ p = $2 }} END {{ printf "%.0f %.0f", c, p }}'
            }}
            for ring in {rings}; do
                ip netns exec far ethtool -G nic1 rx $ring
                up nic0
                sleep 0.2
                before=$(reading)
                iperf3 -c 10.9.0.2 -n 8M >/dev/null
                since tcp nic1 $before
            done
            kill $idler
            "#
        );
    }
    let queues = plan.queues;
    let jobs = plan.jobs.join(" ");
    let verdicts = plan.verdicts.join(" ");
    let sockets = if queues > 1 {
        format!("0-{}", queues - 1)
    } else {
        "0".to_owned()
    };
    format!(
        r#"{COUNTING}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        # Where flows go follows from the key.
        ethtool -X nic0 hkey $(seq -s: -f %02g 10 49)
        ethtool -L nic0 combined {queues}
        ip link set nic1 up
        # An interrupt comes for many packets, so that most runs of NAPI are full.
        ethtool -C nic0 rx-usecs 1000 rx-frames 192
        for ring in {rings}; do
            ethtool -G nic0 rx $ring tx $ring
            up nic1
            # Where there are sockets alone, what comes without one would flood the stack.
            [ -z "{verdicts}" ] || up nic0
            for verdict in {verdicts}; do
                during ${{verdict%:*}} $XDP verdict nic0 $verdict 100000
            done
            for job in {jobs}; do
                for mode in copy zerocopy; do
                    sockets $job-$mode $XDP xsk nic0 {sockets} $mode $job 1000000000 1000000
                done
            done
        done
        "#
    )
}

/// One guest.
fn measure(plan: &Plan, figures: &mut Vec<Figure>) -> Verdict {
    let source = format!("gen:{},{},0", plan.bytes, 16 * plan.queues);
    let ports = if plan.tcp {
        ["other", "other"]
    } else {
        [source.as_str(), "open"]
    };
    let build: &[&str] = match plan.build {
        "fixed" => &["ONIC_MEASURE=1", "ONIC_FIXED_BUFFERS=1"],
        _ => &["ONIC_MEASURE=1"],
    };
    let settings = Settings {
        processors: 1,
        ports: &ports,
        build,
        count_instructions: true,
        ..Settings::default()
    };
    let report = nic::run(settings, &script(plan))?;
    let before = figures.len();
    for line in report.console.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let ["figure", ring, what, cycles, packets] = words[..] else {
            continue;
        };
        let (Ok(ring), Ok(cycles), Ok(packets)) =
            (ring.parse(), cycles.parse::<u64>(), packets.parse::<u64>())
        else {
            return fail(format!("not a figure: {line}"));
        };
        let instructions = cycles as f64 / packets as f64;
        println!("  {what}, ring {ring}: {instructions:.1} of {packets}");
        figures.push(Figure {
            build: plan.build.to_owned(),
            bytes: plan.bytes,
            queues: plan.queues,
            ring,
            what: what.to_owned(),
            instructions: (instructions * 10.0).round() / 10.0,
            packets,
        });
    }
    report.check(
        figures.len() - before == plan.figures(),
        "not all was measured",
    )
}

/// All guests, and whether each told all that it was to measure.
fn all(file: &Path) -> Result<bool, Box<dyn std::error::Error>> {
    let mut whole = true;
    let mut figures: Vec<Figure> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(_) => Vec::new(),
    };
    for plan in plans() {
        let known = figures.iter().filter(|figure| plan.has(figure)).count();
        if known == plan.figures() {
            continue;
        }
        figures.retain(|figure| !plan.has(figure));
        let Plan {
            build,
            bytes,
            queues,
            rings,
            ..
        } = plan;
        println!("{build}, {bytes} bytes, queues {queues}, rings {rings:?}:");
        match measure(&plan, &mut figures) {
            Ok(()) => {}
            Err(Problem::Skipped(reason)) => return Err(reason.into()),
            Err(Problem::Failed(text)) => {
                eprintln!("{text}");
                whole = false;
            }
        }
        fs::write(file, serde_json::to_string_pretty(&figures)? + "\n")?;
    }
    Ok(whole)
}

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: nic_figures FILE");
        return ExitCode::from(2);
    };
    match all(Path::new(&file)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("not here: {error}");
            ExitCode::FAILURE
        }
    }
}
