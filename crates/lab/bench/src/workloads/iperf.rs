//! iperf3: as many bytes as possible.

use std::net::Ipv4Addr;

use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::figures::counted;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::parse;
use crate::process::{Output, Ready};
use crate::session::Session;
use crate::words::words;

pub(super) const WORKLOAD: Workload = Workload {
    name: "iperf3",
    title: "iperf3 with 1, 3 and 8 streams",
    about: "Bytes that the receiver counted. iperf3 serves all streams of a run from one thread. \
            256 MB are sent first and dropped. 'Reverse' sends from the server to the client.",
    programs: &["iperf3"],
    compared_with: &[],
    obstacle: None,
    cells,
};

const STREAMS: [u32; 3] = [1, 3, 8];

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let cell = |(reverse, streams): (bool, u32)| Cell {
        title: format!("iperf3, {}", counted(streams, "stream")),
        variants: variants.clone(),
        repetitions: options.repetitions,
        points: vec![point(
            if reverse { "reverse" } else { "forward" },
            counted(streams, "stream"),
        )],
        run: Box::new(move |session, variant| {
            Ok(vec![measure(session, variant, reverse, streams)?])
        }),
    };
    [false, true]
        .into_iter()
        .flat_map(|reverse| STREAMS.map(|streams| (reverse, streams)))
        .map(cell)
        .collect()
}

/// Bits a second, and what a byte costs.
pub(super) fn point(group: &str, label: String) -> PointSpec {
    PointSpec {
        group: group.to_owned(),
        label,
        x: None,
        unit: "Gbit/s",
        better: Better::Higher,
        cost_unit: CostUnit::Gigabyte,
        paired: false,
        baseline: Variant::Tcp,
    }
}

/// A server at the address.
pub(super) fn server(address: Ipv4Addr, port: u16) -> Vec<String> {
    words!["iperf3", "-s", "-B", address, "-p", port, "--forceflush"]
}

/// A client of it that says in JSON what it has measured.
pub(super) fn client(address: Ipv4Addr, port: u16, streams: u32) -> Vec<String> {
    words!["iperf3", "-c", address, "-p", port, "-P", streams, "-J"]
}

/// Takes what the client says into a sample that has the times of processors.
pub(super) fn take(output: &Output, sample: &mut Sample) -> Result<()> {
    let result = output.read(parse::iperf)?;
    sample.value = result.bits_per_s / 1e9;
    sample.bytes = result.bytes;
    sample.details.insert("retransmits", result.retransmits);
    Ok(())
}

/// The server has gone back to its port so many times. It serves one client at a time, resets a
/// second one, and is busy for a moment after a client has ended.
pub(super) fn listening(times: usize) -> Ready {
    Ready::Says("Server listening", times)
}

fn measure(session: &Session, variant: Variant, reverse: bool, streams: u32) -> Result<Sample> {
    let port = session.free_port()?;
    let words = server(Ipv4Addr::LOCALHOST, port);
    let mut running = session.server(variant, &words, &listening(1))?;
    let client_words = |amount: [String; 2]| {
        let mut words = client(Ipv4Addr::LOCALHOST, port, streams);
        words.extend(amount);
        if reverse {
            words.push("-R".to_owned());
        }
        words
    };
    let warm_up = client_words(["-n".to_owned(), "256M".to_owned()]);
    session
        .client(variant, &warm_up, session.seconds)?
        .read(parse::iperf)?;
    running.wait_ready(&listening(2))?;
    let words = client_words(["-t".to_owned(), session.seconds.to_string()]);
    let (output, mut sample) = session.measured(variant, &[&running], &words)?;
    take(&output, &mut sample)?;
    Ok(sample)
}
