//! How many bytes WRITE moves between two hosts, and what that costs.

use super::programs::{self, Perftest};
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::machine;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "bandwidth",
    title: "Bandwidth of 64 KiB WRITE between two hosts",
    about: "perftest's average, its default of 128 WRITEs under way. TCP is one stream of iperf3, \
            whose segments cross a veth pair 64 KiB at a time and without checksums: no packet of \
            an MTU is ever made. Raw AF_XDP is one direction of packets as large as RoCEv2's at \
            this MTU (1024 and 4096 bytes of payload), made and dropped by threads that do nothing \
            else, whatever is lost: its limit is the veth pair's packet rate in copy mode.",
    programs: &[PROGRAM, "iperf3"],
    compared_with: &[machine::PING_PONG],
    obstacle: None,
    cells,
};

pub const PROGRAM: &str = "ib_write_bw";
pub const LARGE: Link = Link {
    label: "MTU 9000",
    mtu: 9000,
    payload_bytes: 4096,
};
pub const SMALL: Link = Link {
    label: "MTU 1500",
    mtu: 1500,
    payload_bytes: 1024,
};

/// A kind of link.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub label: &'static str,
    mtu: u32,
    /// Of one RoCEv2 packet.
    payload_bytes: u32,
}

const MESSAGE_BYTES: u32 = 64 << 10;
const VARIANTS: [Variant; 4] = [
    Variant::Tcp,
    Variant::RoceXdp,
    Variant::RoceUdp,
    Variant::RawXdp,
];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |link: Link| Cell {
        title: format!("{PROGRAM}, 64 KiB, {}", link.label),
        variants: VARIANTS.to_vec(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: PROGRAM.to_owned(),
            label: link.label.to_owned(),
            x: None,
            unit: "Gb/s",
            better: Better::Higher,
            cost_unit: CostUnit::Gigabyte,
            paired: false,
            baseline: Variant::Tcp,
        }],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, link)?])),
    };
    [LARGE, SMALL].into_iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, link: Link) -> Result<Sample> {
    let mut sample = match variant {
        Variant::Tcp => programs::tcp_rate(session, variant, link.mtu)?,
        Variant::RawXdp => {
            let payload_bytes = link.payload_bytes;
            let seconds = session.seconds;
            let (result, mut sample) =
                programs::raw(session, variant, link.mtu, payload_bytes, 1_000, seconds)?;
            sample.value = result.packets_per_s * f64::from(payload_bytes);
            sample.details.insert("packets_per_s", result.packets_per_s);
            sample
        }
        _ => {
            let mut sample = write_rate(session, variant, link, None)?;
            sample.bytes = sample.operations * f64::from(MESSAGE_BYTES);
            sample
        }
    };
    sample.value *= 8e-9;
    Ok(sample)
}

/// Bytes a second that perftest WRITEs.
pub fn write_rate(
    session: &Session,
    variant: Variant,
    link: Link,
    faults: Option<&'static str>,
) -> Result<Sample> {
    let test = Perftest {
        program: PROGRAM,
        mtu: link.mtu,
        // -f: perftest would leave out a quarter of four seconds and more at both ends, of which
        // the CPU time is counted.
        arguments: words!["-s", MESSAGE_BYTES, "-D", session.seconds, "-f", 0],
        bulk: true,
        faults,
    };
    let mut sample = programs::perftest_rate(session, variant, &test)?;
    sample.value *= f64::from(MESSAGE_BYTES);
    Ok(sample)
}
