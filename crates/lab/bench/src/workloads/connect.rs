//! The cost of a connection that lives for one byte.

use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::figures;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::process::Ready;
use crate::session::Session;

pub(super) const WORKLOAD: Workload = Workload {
    name: "connect",
    title: "Connection setup rate",
    about: "A small client of our own connects, sends a byte, reads its echo and the end, and \
            closes; then the same again. The server closes first, so that the client does not run \
            out of ports. Threads block; each has one connection at a time.",
    programs: &[],
    compared_with: &[],
    obstacle: None,
    cells,
};

const THREADS: [u32; 2] = [1, 4];

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let cell = |threads: u32| Cell {
        title: format!("connect, {}", figures::counted(threads, "thread")),
        variants: variants.clone(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: "connect, one byte each way, close".to_owned(),
            label: figures::counted(threads, "thread"),
            x: None,
            unit: "connections/s",
            better: Better::Higher,
            cost_unit: CostUnit::Operation,
            paired: false,
            baseline: Variant::Tcp,
        }],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, threads)?])),
    };
    THREADS.into_iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, threads: u32) -> Result<Sample> {
    let port = session.free_port()?;
    let (port_word, threads_word) = (port.to_string(), threads.to_string());
    let server_words = session.helper(&["echo-once-server", &port_word, &threads_word]);
    let server = session.server(variant, &server_words, &Ready::Tcp(port))?;
    let client_words = |seconds: u32| {
        let seconds = seconds.to_string();
        session.helper(&["echo-once-client", &port_word, &threads_word, &seconds])
    };
    session.client(variant, &client_words(1), 1)?;
    let words = client_words(session.seconds);
    let (output, mut sample) = session.measured(variant, &[&server], &words)?;
    let (connections, seconds) = output.read(counted)?;
    sample.value = connections / seconds;
    sample.operations = connections;
    sample.bytes = 2.0 * connections;
    Ok(sample)
}

/// The client says `N connections in S seconds`.
fn counted(text: &str) -> Result<(f64, f64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [connections, "connections", "in", seconds, "seconds"] = words[..]
        && let (Ok(connections), Ok(seconds)) = (connections.parse(), seconds.parse())
        && connections > 0.0
        && seconds > 0.0
    {
        return Ok((connections, seconds));
    }
    Err(BenchError::Failed(format!(
        "the connecting client did not say how many it made: {text}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_read_and_zero_is_refused() {
        assert_eq!(
            counted("120 connections in 1.5 seconds\n").ok(),
            Some((120.0, 1.5))
        );
        assert!(counted("0 connections in 1.5 seconds").is_err());
        assert!(counted("").is_err());
    }
}
