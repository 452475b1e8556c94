//! iperf3 between two hosts: bytes a second, what they cost, and whom.

use super::{Cell, Options, Workload, variants};
use crate::error::Result;
use crate::figures::counted;
use crate::model::{PointSpec, Sample, Variant};
use crate::session::Session;
use crate::session::hosts::Hosts;
use crate::words::words;
use crate::workloads::iperf;

pub const WORKLOAD: Workload = Workload {
    name: "iperf3",
    title: "iperf3 on two hosts with 1 and 4 streams",
    about: "Bytes that the receiver counted. CPU time is that of client, server, both daemons and \
            the kernel's threads that carry frames; below it the same by part.",
    programs: &["iperf3"],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const GROUP: &str = "throughput";
pub const STREAMS: [u32; 2] = [1, 4];

/// The parts of the CPU time, by their names in the tables.
type Part = (&'static str, fn(&Sample) -> f64);
const PARTS: [Part; 4] = [
    ("client", |sample| sample.cpu_client_s),
    ("server", |sample| sample.cpu_server_s),
    ("both sluiced", |sample| sample.cpu_daemon_s),
    ("kernel threads", |sample| sample.cpu_kernel_s),
];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |streams: u32| Cell {
        title: format!("iperf3, {}", counted(streams, "stream")),
        variants: variants(options, &[]),
        repetitions: options.repetitions,
        points: points(streams),
        run: Box::new(move |session, variant| measure(session, variant, streams)),
    };
    STREAMS.map(cell).into()
}

pub fn points(streams: u32) -> Vec<PointSpec> {
    let label = counted(streams, "stream");
    let mut points = vec![iperf::point(GROUP, label.clone())];
    let group = format!("CPU time by part, {label}");
    points.extend(
        PARTS.map(|(part, _)| PointSpec::cost(&group, part.to_owned(), "s/GB", Variant::Tcp)),
    );
    points
}

pub fn measure(session: &Session, variant: Variant, streams: u32) -> Result<Vec<Sample>> {
    let hosts = Hosts::new(session, variant)?;
    let (address, port) = (hosts.address(), session.free_port()?);
    let server = hosts.server(&iperf::server(address, port), &iperf::listening(1))?;
    let mut client = iperf::client(address, port, streams);
    client.extend(words!["-t", session.seconds]);
    let (output, mut sample) = hosts.measured(&[&server], &client)?;
    iperf::take(&output, &mut sample)?;
    let parts = PARTS.map(|(_, seconds)| Sample {
        value: seconds(&sample) * 1e9 / sample.bytes,
        cpu_others_share: sample.cpu_others_share,
        ..Sample::default()
    });
    let mut samples = vec![sample];
    samples.extend(parts);
    Ok(samples)
}
