//! How perftest, UCX and libfabric are started, and what they measured.

use std::time::Duration;

use crate::error::{BenchError, Result};
use crate::model::{Sample, Variant};
use crate::parse::verbs as parse;
use crate::process::{Output, Ready};
use crate::session::Session;
use crate::words::words;

/// How long a server may outlive its client, which has told it that all is over.
const SERVER_GRACE: Duration = Duration::from_secs(120);

/// Runs a server and, once it listens, its client. Both must succeed.
fn pair(
    session: &Session,
    variant: Variant,
    port: u16,
    server: &[String],
    client: &[String],
) -> Result<(Output, Sample)> {
    let server = session.server(variant, server, &Ready::Listens(port))?;
    let (output, sample) = session.measured(variant, &[&server], client)?;
    server.finish(Duration::from_secs(u64::from(session.seconds)) + SERVER_GRACE)?;
    Ok((output, sample))
}

/// A program of perftest with its arguments, under `sluice verbs`.
pub fn perftest_words(
    session: &Session,
    variant: Variant,
    program: &str,
    port: u16,
    arguments: &[String],
) -> Vec<String> {
    // -F: a processor whose clock changes is no reason to end.
    let mut words = words![program, "-F", "-p", port];
    words.extend_from_slice(arguments);
    session.verbs(variant == Variant::VerbsPrivate, &words)
}

/// Runs both ends of a program of perftest under `sluice verbs`.
pub fn perftest(
    session: &Session,
    variant: Variant,
    program: &str,
    arguments: &[String],
) -> Result<(Output, Sample)> {
    let port = session.free_port()?;
    let server = perftest_words(session, variant, program, port, arguments);
    let mut client = server.clone();
    client.push("127.0.0.1".to_owned());
    pair(session, variant, port, &server, &client)
}

/// The latency that a client of perftest said, in microseconds: one way where an operation is
/// answered by another, the whole operation for READ and atomics.
pub fn latency(program: &str, output: &Output, mut sample: Sample) -> Result<Sample> {
    let result = output.read(|text| parse::perftest_latency(program, text))?;
    sample.value = result.typical_us;
    sample.operations = result.iterations;
    sample.details.insert("latency_min_us", result.min_us);
    sample.details.insert("latency_avg_us", result.avg_us);
    sample.details.insert("latency_p99_us", result.p99_us);
    Ok(sample)
}

/// The rate that a client of perftest said, in messages a second.
pub fn rate(program: &str, output: &Output, mut sample: Sample) -> Result<Sample> {
    let result = output.read(|text| parse::perftest_rate(program, text))?;
    sample.value = result.messages_per_s;
    sample.operations = result.iterations;
    Ok(sample)
}

/// A latency of perftest; see [`latency`].
pub fn perftest_latency(
    session: &Session,
    variant: Variant,
    program: &str,
    arguments: &[String],
) -> Result<Sample> {
    let (output, sample) = perftest(session, variant, program, arguments)?;
    latency(program, &output, sample)
}

/// A rate of perftest; see [`rate`].
pub fn perftest_rate(
    session: &Session,
    variant: Variant,
    program: &str,
    arguments: &[String],
) -> Result<Sample> {
    let (output, sample) = perftest(session, variant, program, arguments)?;
    rate(program, &output, sample)
}

/// A test of `ucx_perftest`.
#[derive(Debug, Clone, Copy)]
pub struct UcxTest {
    pub name: &'static str,
    /// How the data is handed over; `None` for tests of UCX's upper layer, which decides itself.
    pub layout: Option<&'static str>,
}

/// Runs a test of UCX over the transport of `variant`.
pub fn ucx(
    session: &Session,
    variant: Variant,
    test: UcxTest,
    message_bytes: u32,
    iterations: u64,
) -> Result<(parse::UcxResult, Sample)> {
    let transport = match variant {
        Variant::UcxPosix => "posix",
        Variant::UcxCma => "cma",
        other => return Err(unknown("ucx_perftest", other)),
    };
    let port = session.free_port()?;
    let mut server = words!["env", format!("UCX_TLS={transport}"), "ucx_perftest"];
    server.extend(words!["-p", port]);
    let mut client = server.clone();
    client.extend(words!["127.0.0.1", "-v", "-t", test.name]);
    client.extend(words!["-s", message_bytes, "-n", iterations]);
    if let Some(layout) = test.layout {
        client.extend(words!["-x", transport, "-d", "memory", "-D", layout]);
    }
    let (output, mut sample) = pair(session, variant, port, &server, &client)?;
    let result = output.read(parse::ucx)?;
    sample.operations = iterations as f64;
    Ok((result, sample))
}

/// One way of libfabric's ping-pong with tagged messages through shared memory, in microseconds.
pub fn libfabric_latency(
    session: &Session,
    variant: Variant,
    message_bytes: u32,
    iterations: u64,
) -> Result<Sample> {
    let port = session.free_port()?;
    // Both ends must be told the same.
    let mut common = words!["fi_pingpong", "-p", "shm", "-e", "rdm", "-m", "tagged"];
    common.extend(words!["-S", message_bytes, "-I", iterations]);
    let mut server = common.clone();
    server.extend(words!["-B", port]);
    let mut client = common;
    client.extend(words!["-P", port, "127.0.0.1"]);
    let (output, mut sample) = pair(session, variant, port, &server, &client)?;
    sample.value = output.read(parse::libfabric)?;
    sample.operations = iterations as f64;
    Ok(sample)
}

/// Copies of one thread from one buffer of this size to another, in a second.
pub fn memcpy_rate(session: &Session, variant: Variant, bytes: u32) -> Result<Sample> {
    let (bytes, seconds) = (bytes.to_string(), session.seconds.to_string());
    let words = session.helper(&["memcpy", &bytes, &seconds]);
    let (output, mut sample) = session.measured(variant, &[], &words)?;
    let (copies, elapsed_s) = output.read(parse::memcpy)?;
    sample.value = copies / elapsed_s;
    sample.operations = copies;
    Ok(sample)
}

pub fn unknown(program: &str, variant: Variant) -> BenchError {
    BenchError::Failed(format!("{program} does not measure {}", variant.title()))
}
