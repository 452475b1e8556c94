//! The same verbs programs over the kernel's own RoCEv2 (rxe) and over Sluice's, on one machine.

use std::time::Duration;

use super::roce::programs::{self as between_hosts, Perftest};
use super::verbs::programs as within_host;
use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::network::twins::Twins;
use crate::process::{Output, Ready};
use crate::session::Session;
use crate::words::words;

/// Every workload against rxe.
pub const ALL: [Workload; 3] = [
    Workload {
        name: "write",
        title: "WRITE over the kernel's RoCEv2 and over Sluice",
        about: ABOUT,
        programs: &["ib_write_lat", "ib_write_bw"],
        compared_with: &[],
        obstacle: None,
        cells: |options| cells(options, "write"),
    },
    Workload {
        name: "send",
        title: "SEND over the kernel's RoCEv2 and over Sluice",
        about: ABOUT,
        programs: &["ib_send_lat", "ib_send_bw"],
        compared_with: &[],
        obstacle: None,
        cells: |options| cells(options, "send"),
    },
    Workload {
        name: "read",
        title: "READ over the kernel's RoCEv2 and over Sluice",
        about: ABOUT,
        programs: &["ib_read_lat", "ib_read_bw"],
        compared_with: &[],
        obstacle: None,
        cells: |options| cells(options, "read"),
    },
];

const ABOUT: &str = "perftest over a reliable connection: the typical latency (median), one way for \
                     WRITE and SEND, the whole operation for READ; and the average bandwidth with \
                     its defaults of operations under way. 'kernel rxe' is the kernel's software \
                     RoCEv2 on both ends of a veth pair, 'Sluice AF_XDP' and 'Sluice UDP' cross \
                     such a pair with the same MTU of 1500. Beside them, and not part of the \
                     comparison, is what each has for two programs of one machine: 'rxe, one device' \
                     hands packets over within the device, 'Sluice shm' is what 'sluice verbs' does \
                     without --device.";

/// What a program tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Latency,
    Bandwidth,
}

/// The programs, each behind its workload and with what it tells.
pub const PROGRAMS: [(&str, &str, Measure); 6] = [
    ("write", "ib_write_lat", Measure::Latency),
    ("write", "ib_write_bw", Measure::Bandwidth),
    ("send", "ib_send_lat", Measure::Latency),
    ("send", "ib_send_bw", Measure::Bandwidth),
    ("read", "ib_read_lat", Measure::Latency),
    ("read", "ib_read_bw", Measure::Bandwidth),
];

/// A length of messages.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub label: &'static str,
    bytes: u32,
    /// How many are sent, one after the other, for each second that a measurement may take. On an
    /// emulated machine that is about half a second, most of it behind the first few hundred, in
    /// which the emulator translates the code.
    one_by_one_per_s: u32,
}

pub const SIZES: [Size; 3] = [
    Size {
        label: "8 B",
        bytes: 8,
        one_by_one_per_s: 4000,
    },
    Size {
        label: "4 KiB",
        bytes: 4 << 10,
        one_by_one_per_s: 1500,
    },
    Size {
        label: "1 MiB",
        bytes: 1 << 20,
        one_by_one_per_s: 10,
    },
];

/// Of every link, bytes.
const MTU: u32 = 1500;
/// What RoCEv2 puts into one packet of it, bytes.
const PATH_MTU: u32 = 1024;

/// How perftest's complaint about its clock begins, and how often it may be made.
const NO_CLOCK: &str = "Correlation coefficient";
const CLOCK_TRIES: u32 = 12;

/// The detail that says how many frames crossed the pair.
const FRAMES: &str = "frames";

const COMPARED: [Variant; 3] = [Variant::Rxe, Variant::RoceXdp, Variant::RoceUdp];
/// What is measured beside them.
const WITHIN_HOST: [Variant; 2] = [Variant::RxeOneDevice, Variant::VerbsShm];

/// How long a server may outlive its client, which has told it that all is over.
const SERVER_GRACE: Duration = Duration::from_secs(20);

fn cells(options: &Options, workload: &str) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (of, program, measure) in PROGRAMS {
        if of == workload {
            cells.extend(SIZES.map(|size| cell(options, program, measure, size)));
        }
    }
    cells
}

fn cell(options: &Options, program: &'static str, measure: Measure, size: Size) -> Cell {
    let (unit, better) = match measure {
        Measure::Latency => ("µs", Better::Lower),
        Measure::Bandwidth => ("MB/s", Better::Higher),
    };
    let beside: &[Variant] = if options.brief { &[] } else { &WITHIN_HOST };
    Cell {
        title: format!("{program}, {}", size.label),
        variants: [&COMPARED, beside].concat(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: program.to_owned(),
            label: size.label.to_owned(),
            x: None,
            unit,
            better,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::Rxe,
        }],
        run: Box::new(move |session, variant| {
            with_a_clock(|| measured(session, variant, program, measure, size))
        }),
    }
}

fn measured(
    session: &Session,
    variant: Variant,
    program: &'static str,
    measure: Measure,
    size: Size,
) -> Result<Vec<Sample>> {
    let (output, sample) = perftest(session, variant, program, measure, size)?;
    let mut sample = match measure {
        Measure::Latency => within_host::latency(program, &output, sample)?,
        Measure::Bandwidth => within_host::rate(program, &output, sample)?,
    };
    check_way(variant, size, &sample)?;
    if measure == Measure::Bandwidth {
        sample.value *= f64::from(size.bytes) / 1e6;
    }
    Ok(vec![sample])
}

/// Runs perftest again where it did not find out how fast its clock goes. It compares the processor's
/// counter with the time of day and gives up, without figures, when an emulated machine lets the two
/// drift apart meanwhile.
fn with_a_clock<T>(mut run: impl FnMut() -> Result<T>) -> Result<T> {
    let mut left = CLOCK_TRIES;
    loop {
        left -= 1;
        match run() {
            Err(BenchError::Failed(text)) if left > 0 && text.contains(NO_CLOCK) => {}
            outcome => return outcome,
        }
    }
}

/// Runs both ends of the program over the variant's devices.
fn perftest(
    session: &Session,
    variant: Variant,
    program: &'static str,
    measure: Measure,
    size: Size,
) -> Result<(Output, Sample)> {
    let mut arguments = words!["-s", size.bytes];
    arguments.extend(match measure {
        Measure::Latency => words!["-n", size.one_by_one_per_s.saturating_mul(session.seconds)],
        Measure::Bandwidth => words!["-D", session.seconds, "-f", 0],
    });
    match variant {
        Variant::Rxe | Variant::RxeOneDevice => by_kernel(session, variant, program, &arguments),
        Variant::VerbsShm => within_host::perftest(session, variant, program, &arguments),
        _ => {
            let test = Perftest {
                program,
                mtu: MTU,
                arguments,
                // More than a packet at once takes sockets where AF_XDP copies.
                bulk: measure == Measure::Bandwidth || size.bytes > PATH_MTU,
                faults: None,
            };
            between_hosts::perftest(session, variant, &test)
        }
    }
}

/// Runs both ends over rxe, which both must survive.
fn by_kernel(
    session: &Session,
    variant: Variant,
    program: &'static str,
    arguments: &[String],
) -> Result<(Output, Sample)> {
    let twins = Twins::new(MTU)?;
    let [one, other] = twins.devices();
    let client_device = if variant == Variant::Rxe { other } else { one };
    let port = session.free_port()?;
    let words = |device: &str| {
        let mut words = words![program, "-F", "-p", port, "-d", device];
        words.extend_from_slice(arguments);
        words
    };
    let mut client = words(client_device);
    client.push("127.0.0.1".to_owned());
    let server = session.server(variant, &words(one), &Ready::Listens(port))?;
    let (output, mut sample) = session.measured(variant, &[&server], &client)?;
    server.finish(Duration::from_secs(u64::from(session.seconds)) + SERVER_GRACE)?;
    sample.details.insert(FRAMES, twins.frames()? as f64);
    Ok((output, sample))
}

/// Whether rxe's packets crossed the pair where they are to, and only there.
fn check_way(variant: Variant, size: Size, sample: &Sample) -> Result<()> {
    let expected = match variant {
        Variant::Rxe => true,
        Variant::RxeOneDevice => false,
        _ => return Ok(()),
    };
    let packets = sample.operations * f64::from(size.bytes.div_ceil(PATH_MTU));
    let frames = sample.details.get(FRAMES).copied().unwrap_or(0.0);
    if (frames >= packets) == expected {
        return Ok(());
    }
    Err(BenchError::Failed(format!(
        "{frames:.0} frames crossed the veth pair, and {packets:.0} packets and more were sent: \
         rxe took another way than '{}'",
        variant.title()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_is_tried_again_but_not_for_ever() {
        let tries = |failures: u32, text: &str| {
            let mut count = 0;
            let outcome = with_a_clock(|| {
                count += 1;
                if count > failures {
                    return Ok(());
                }
                Err(BenchError::Failed(text.to_owned()))
            });
            (count, outcome.is_ok())
        };
        let said = "Correlation coefficient r^2: 0.852292 < 0.9";
        assert_eq!(tries(2, said), (3, true));
        assert_eq!(tries(CLOCK_TRIES, said), (CLOCK_TRIES, false));
        assert_eq!(tries(1, "no route"), (1, false));
    }

    #[test]
    fn rxe_by_another_way_is_no_figure() {
        let check = |variant, frames: f64| {
            let sample = Sample {
                operations: 100.0,
                details: [(FRAMES, frames)].into(),
                ..Sample::default()
            };
            check_way(variant, SIZES[1], &sample)
        };
        assert!(check(Variant::Rxe, 800.0).is_ok());
        assert!(check(Variant::RxeOneDevice, 7.0).is_ok());
        let error = check(Variant::Rxe, 7.0).expect_err("it stayed in the device");
        assert!(error.to_string().contains("7 frames"), "{error}");
        assert!(check(Variant::RxeOneDevice, 800.0).is_err());
        assert!(check(Variant::RoceXdp, 0.0).is_ok(), "has its own check");
    }
}
