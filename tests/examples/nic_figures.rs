//! Instructions of the driver for each packet (docs/nic.md): a guest whose nanosecond is an
//! instruction, a source that always has the next packet, and the driver built with a count of the
//! cycles of NAPI.
//!
//! ```text
//! cargo run -p sluice-tests --example nic_figures
//! ```

use std::process::ExitCode;

use sluice_tests::nic::{self, Settings};
use sluice_tests::suite::{Problem, Verdict};

const VERDICTS: [&str; 5] = ["drop", "abort", "pass", "tx", "redirect:nic1"];

/// One guest: everything that one build does with packets of one length.
fn figures(name: &str, build: &[&str], port: &str, ring: u32) -> Verdict {
    let ports = [port, "open"];
    let settings = Settings {
        processors: 1,
        ports: &ports,
        build,
        count_instructions: true,
        ..Settings::default()
    };
    let script = format!(
        r#"
        nics
        ip link set nic0 address 02:00:00:00:00:01
        ethtool -G nic0 rx {ring} tx {ring}
        ip link set nic1 up
        up nic0
        up nic1
        # An interrupt comes for many packets, so that most runs of NAPI are full.
        ethtool -C nic0 rx-usecs 1000 rx-frames 192
        reading() {{ ethtool -S nic0 | awk '/rx0_poll_cycles/ {{ c = $2 }} /rx0_poll_packets/ {{ p = $2 }} END {{ print c, p }}'; }}
        since() {{
            set -- $1 $2 $3 $(reading)
            [ $5 -gt $3 ] || {{ echo "no full run for $1"; return; }}
            echo "figure_$1=$(( ($4 - $2) * 10 / ($5 - $3) )) packets_$1=$(($5 - $3))"
        }}
        # Counted only while the program is there: before and after it, packets go to the stack.
        during() {{
            name=$1
            shift
            "$@" >/dev/null &
            sleep 0.1
            before=$(reading)
            sleep 0.1
            since $name $before
            kill $!
            wait $! 2>/dev/null || :
        }}
        for verdict in {}; do
            during ${{verdict%:*}} $XDP verdict nic0 $verdict 100000
        done
        if ! [ "{name}" = fixed ]; then
            for job in drop forward; do
                for mode in copy zerocopy; do
                    during $job-$mode $XDP xsk nic0 0 $mode $job 1000000000 1000000
                done
            done
        fi
        "#,
        VERDICTS.join(" ")
    );
    let report = nic::run(settings, &script)?;
    println!("{name}, {port}, ring {ring}:");
    for line in report
        .console
        .lines()
        .filter(|line| line.starts_with("figure_"))
    {
        println!("    {line}");
    }
    Ok(())
}

fn main() -> ExitCode {
    let fixed: &[&str] = &["ONIC_MEASURE=1", "ONIC_FIXED_BUFFERS=1"];
    let pool: &[&str] = &["ONIC_MEASURE=1"];
    let runs = [
        ("fixed", fixed, "gen:60,1,0", 1024),
        ("pool", pool, "gen:60,1,0", 1024),
        ("fixed", fixed, "gen:1514,1,0", 1024),
        ("pool", pool, "gen:1514,1,0", 1024),
    ];
    for (name, build, port, ring) in runs {
        match figures(name, build, port, ring) {
            Ok(()) => {}
            Err(Problem::Skipped(reason)) => {
                eprintln!("not here: {reason}");
                return ExitCode::FAILURE;
            }
            Err(Problem::Failed(text)) => eprintln!("{name}, {port}, ring {ring}: {text}"),
        }
    }
    ExitCode::SUCCESS
}
