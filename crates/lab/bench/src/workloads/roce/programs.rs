//! How programs are started on two hosts, and what they measured.

use std::time::Duration;

use crate::error::{BenchError, Result};
use crate::machine;
use crate::model::{Sample, Variant};
use crate::network::{Network, Received};
use crate::parse::{self, verbs};
use crate::process::{Output, Ready};
use crate::session::Session;
use crate::words::words;
use crate::workloads::verbs::programs as said;

/// How long a server may outlive its client, which has told it that all is over.
const SERVER_GRACE: Duration = Duration::from_secs(20);

/// Of what a measurement over AF_XDP receives, so much may come by the kernel's stack: packets
/// from before the neighbour is known, and what is not RoCEv2.
const KERNEL_SHARE_MAX: f64 = 0.05;

/// The same where bulk is measured, or many small messages, whose data takes sockets that segment
/// if AF_XDP copies: only what answers it must come past the kernel.
const KERNEL_SHARE_MAX_BULK: f64 = 0.95;

/// The option of `sluice verbs` for faults on purpose.
pub const FAULT: &str = "fault";

/// A program of perftest, on which link, and what is asked of it.
#[derive(Debug, Clone)]
pub struct Perftest {
    pub program: &'static str,
    /// Of the link, in bytes.
    pub mtu: u32,
    pub arguments: Vec<String>,
    /// Its messages are of many packets each, or many are posted at a time.
    pub bulk: bool,
    /// What `sluice verbs` is to do to the packets of both ends.
    pub faults: Option<&'static str>,
}

/// Runs both ends of perftest, each on a host of its own under `sluice verbs`. Both must succeed,
/// and the packets must have taken the way that the variant is about.
pub fn perftest(session: &Session, variant: Variant, test: &Perftest) -> Result<(Output, Sample)> {
    perftest_with(session, variant, test, &[])
}

/// The same with more options for `sluice verbs`.
pub fn perftest_with(
    session: &Session,
    variant: Variant,
    test: &Perftest,
    more: &[String],
) -> Result<(Output, Sample)> {
    let device = match variant {
        Variant::RoceXdp => "roce",
        Variant::RoceUdp => "roce-udp",
        Variant::Iwarp => "iwarp",
        other => return Err(unknown(test.program, other)),
    };
    let network = session.network(test.mtu)?;
    let mut options = words!["--device", device];
    options.extend_from_slice(more);
    if let Some(faults) = test.faults {
        options.extend(words![format!("--{FAULT}"), faults]);
    }
    let (output, mut sample) = both_ends(
        session,
        variant,
        test,
        &network,
        Default::default(),
        &options,
    )?;
    let received = network.received()?;
    let kernel_share = kernel_share(received)?;
    check_way(variant, test.bulk, kernel_share)?;
    sample.details.insert("kernel_share", kernel_share);
    sample.details.insert("frames", received.frames as f64);
    if test.faults.is_some() {
        let lost = verbs::lost(output.complaints())?;
        sample.details.insert("lost_share", lost.share());
    }
    Ok((output, sample))
}

/// Runs both ends, each on one of the two hosts, with `options` for `sluice verbs` and the words of `front` in
/// front of it, the server's first.
pub fn both_ends(
    session: &Session,
    variant: Variant,
    test: &Perftest,
    network: &Network,
    front: [Vec<String>; 2],
    options: &[String],
) -> Result<(Output, Sample)> {
    let port = session.free_port()?;
    // -F: a processor whose clock changes is no reason to end.
    let mut words = words![test.program, "-F", "-p", port];
    if variant == Variant::Iwarp {
        // Streams are found by the connection manager.
        words.push("-R".to_owned());
    }
    words.extend_from_slice(&test.arguments);
    let [mut server_words, mut client_words] = front;
    for end in [&mut server_words, &mut client_words] {
        end.extend(session.verbs_with(options, &words));
    }
    client_words.push(network.server.address().to_string());
    let (server, client) = (Some(&network.server), Some(&network.client));
    let server = session.server_on(server, variant, &server_words, &Ready::Listens(port))?;
    let measured = session.measured_on(client, variant, &[&server], &client_words)?;
    server.finish(Duration::from_secs(u64::from(session.seconds)) + SERVER_GRACE)?;
    Ok(measured)
}

/// Which part of all frames became datagrams of the kernel's UDP.
fn kernel_share(received: Received) -> Result<f64> {
    if received.frames == 0 {
        return Err(BenchError::Failed(
            "no frame passed between the hosts: the programs met by another way".to_owned(),
        ));
    }
    Ok(received.datagrams as f64 / received.frames as f64)
}

/// The device falls back to UDP where AF_XDP is not possible; its figure would then be another.
fn check_way(variant: Variant, bulk: bool, kernel_share: f64) -> Result<()> {
    let most = if bulk {
        KERNEL_SHARE_MAX_BULK
    } else {
        KERNEL_SHARE_MAX
    };
    if variant == Variant::RoceXdp && kernel_share > most {
        return Err(BenchError::Failed(format!(
            "{:.0} % of the frames came by the kernel's UDP and not by AF_XDP; 'sluice doctor' \
             says what AF_XDP needs",
            100.0 * kernel_share
        )));
    }
    Ok(())
}

/// A latency of perftest; see [`said::latency`].
pub fn perftest_latency(session: &Session, variant: Variant, test: &Perftest) -> Result<Sample> {
    let (output, sample) = perftest(session, variant, test)?;
    said::latency(test.program, &output, sample)
}

/// A rate of perftest in messages a second.
pub fn perftest_rate(session: &Session, variant: Variant, test: &Perftest) -> Result<Sample> {
    let (output, sample) = perftest(session, variant, test)?;
    said::rate(test.program, &output, sample)
}

/// One way of a ping-pong over kernel TCP, the median, in microseconds.
pub fn tcp_latency(
    session: &Session,
    variant: Variant,
    mtu: u32,
    message_bytes: u32,
) -> Result<Sample> {
    let network = session.network(mtu)?;
    let (address, port) = (network.server.address(), session.free_port()?);
    let mut server_words = words!["sockperf", "server", "-i", address, "-p", port, "--tcp"];
    let mut client_words = words!["sockperf", "ping-pong", "-i", address, "-p", port, "--tcp"];
    client_words.extend(words!["-m", message_bytes, "-t", session.seconds]);
    if variant == Variant::TcpPolling {
        server_words.push("--nonblocked".to_owned());
        client_words.push("--nonblocked".to_owned());
    }
    let (server, client) = (Some(&network.server), Some(&network.client));
    let server = session.server_on(server, variant, &server_words, &Ready::Listens(port))?;
    let (output, mut sample) = session.measured_on(client, variant, &[&server], &client_words)?;
    let result = output.read(parse::sockperf_ping_pong)?;
    sample.value = result.p50_us;
    sample.operations = result.messages;
    sample.details.insert("latency_p99_us", result.p99_us);
    Ok(sample)
}

/// One stream of iperf3 over kernel TCP, in bytes a second.
pub fn tcp_rate(session: &Session, variant: Variant, mtu: u32) -> Result<Sample> {
    tcp_rate_with(session, variant, mtu, &[])
}

/// The same with more options for the client.
pub fn tcp_rate_with(
    session: &Session,
    variant: Variant,
    mtu: u32,
    more: &[String],
) -> Result<Sample> {
    let network = session.network(mtu)?;
    let (address, port) = (network.server.address(), session.free_port()?);
    let server_words = words!["iperf3", "-s", "-B", address, "-p", port, "--forceflush"];
    let mut client_words = words![
        "iperf3",
        "-c",
        address,
        "-p",
        port,
        "-t",
        session.seconds,
        "-J"
    ];
    client_words.extend_from_slice(more);
    let (server, client) = (Some(&network.server), Some(&network.client));
    let ready = Ready::Says("Server listening", 1);
    let server = session.server_on(server, variant, &server_words, &ready)?;
    let (output, mut sample) = session.measured_on(client, variant, &[&server], &client_words)?;
    let result = output.read(parse::iperf)?;
    sample.value = result.bits_per_s / 8.0;
    sample.bytes = result.bytes;
    sample.details.insert("retransmits", result.retransmits);
    Ok(sample)
}

/// What bare AF_XDP does with packets of so many bytes of payload: both ends are threads of one
/// process, which makes two namespaces and a veth pair of its own, with the same MTU.
pub fn raw(
    session: &Session,
    variant: Variant,
    mtu: u32,
    payload_bytes: u32,
    rounds: u32,
    seconds: u32,
) -> Result<(verbs::RawXdp, Sample)> {
    let program = machine::find_program(machine::PING_PONG)
        .ok_or_else(|| BenchError::Failed("the ping-pong over AF_XDP is gone".to_owned()))?;
    // Its namespaces have names. They are put where only its own mount namespace sees them, so
    // that they are gone with the program, however it ends.
    let script = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec \"$0\" \"$@\"";
    let words = words![
        "unshare",
        "--mount",
        "sh",
        "-c",
        script,
        program.display(),
        rounds,
        seconds,
        mtu,
        payload_bytes
    ];
    let (output, sample) = session.measured(variant, &[], &words)?;
    let result = output.read(verbs::raw_xdp)?;
    Ok((result, sample))
}

pub fn unknown(program: &str, variant: Variant) -> BenchError {
    BenchError::Failed(format!("{program} does not measure {}", variant.title()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_by_the_kernel_are_no_figure_of_af_xdp() {
        let share = |frames, datagrams| kernel_share(Received { frames, datagrams });
        let by_kernel = share(1000, 900).expect("frames passed");
        let error = check_way(Variant::RoceXdp, false, by_kernel).expect_err("it fell back");
        assert!(error.to_string().contains("90 %"), "{error}");
        assert!(check_way(Variant::RoceUdp, false, by_kernel).is_ok());
        assert!(check_way(Variant::RoceXdp, true, by_kernel).is_ok());
        let all = share(1000, 996).expect("frames passed");
        assert!(check_way(Variant::RoceXdp, true, all).is_err());
        let past_it = share(1000, 3).expect("frames passed");
        assert!(check_way(Variant::RoceXdp, false, past_it).is_ok());
        assert!(share(0, 0).is_err());
    }
}
