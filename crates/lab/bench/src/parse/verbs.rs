//! Results of perftest, UCX and libfabric.

use super::{missing, positive};
use crate::error::Result;

/// A row of a perftest program that measures latency.
#[derive(Debug, Clone, PartialEq)]
pub struct PerftestLatency {
    pub iterations: f64,
    pub min_us: f64,
    /// The median.
    pub typical_us: f64,
    pub avg_us: f64,
    pub p99_us: f64,
}

/// Reads the table of `ib_*_lat -n`, which has one row.
pub fn perftest_latency(program: &str, text: &str) -> Result<PerftestLatency> {
    let row = perftest_row(program, text, "t_typical[usec]")?;
    match row[..] {
        [_, iterations, min_us, _, typical_us, avg_us, _, p99_us, _]
            if typical_us > 0.0 && iterations > 0.0 =>
        {
            Ok(PerftestLatency {
                iterations,
                min_us,
                typical_us,
                avg_us,
                p99_us,
            })
        }
        _ => Err(missing(program, "its nine figures", text)),
    }
}

/// A row of a perftest program that measures bandwidth.
#[derive(Debug, Clone, PartialEq)]
pub struct PerftestRate {
    pub iterations: f64,
    pub messages_per_s: f64,
}

/// Reads the table of `ib_*_bw`, which has one row.
///
/// The bandwidth beside the rate is in 2^20 bytes a second under the title "MB/sec", and has two
/// decimals; the rate is exact.
pub fn perftest_rate(program: &str, text: &str) -> Result<PerftestRate> {
    let row = perftest_row(program, text, "MsgRate[Mpps]")?;
    match row[..] {
        [_, iterations, _, _, millions_per_s] if millions_per_s > 0.0 && iterations > 0.0 => {
            Ok(PerftestRate {
                iterations,
                messages_per_s: millions_per_s * 1e6,
            })
        }
        _ => Err(missing(program, "its five figures", text)),
    }
}

/// The figures in the line below the header, which must have the column.
fn perftest_row(program: &str, text: &str, column: &str) -> Result<Vec<f64>> {
    let mut lines = text.lines();
    lines
        .find(|line| line.trim_start().starts_with("#bytes") && line.contains(column))
        .and_then(|_| lines.next())
        .and_then(|row| row.split_whitespace().map(figure).collect())
        .ok_or_else(|| missing(program, &format!("a row below {column}"), text))
}

/// A number that may be zero: a bandwidth that was not measured, a deviation.
fn figure(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// The last line of `ucx_perftest -v`.
#[derive(Debug, Clone, PartialEq)]
pub struct UcxResult {
    /// The median; one way in tests that send back and forth.
    pub percentile_us: f64,
    pub avg_us: f64,
    pub messages_per_s: f64,
}

/// Reads the output of `ucx_perftest -v`: columns by name, the last line for the whole run.
pub fn ucx(text: &str) -> Result<UcxResult> {
    let header = text.lines().find(|line| line.starts_with("iterations,"));
    let row = text.lines().rfind(|line| {
        line.split(',').count() > 1 && line.split(',').all(|field| figure(field).is_some())
    });
    let column = |is_wanted: fn(&str) -> bool, what: &str| {
        header
            .and_then(|header| header.split(',').position(is_wanted))
            .and_then(|index| positive(row?.split(',').nth(index)?))
            .ok_or_else(|| missing("ucx_perftest", what, text))
    };
    Ok(UcxResult {
        percentile_us: column(|name| name.starts_with("50.0_percentile"), "the median")?,
        avg_us: column(
            |name| matches!(name, "avg_lat" | "avg_overhead"),
            "the mean",
        )?,
        messages_per_s: column(|name| name == "overall_mr", "the message rate")?,
    })
}

/// Reads `usec/xfer` of `fi_pingpong`: one way, the mean.
pub fn libfabric(text: &str) -> Result<f64> {
    let mut lines = text.lines();
    let header = lines.find(|line| line.starts_with("bytes"));
    header
        .and_then(|header| {
            header
                .split_whitespace()
                .position(|name| name == "usec/xfer")
        })
        .and_then(|index| positive(lines.next()?.split_whitespace().nth(index)?))
        .ok_or_else(|| missing("fi_pingpong", "usec/xfer", text))
}

/// What bare AF_XDP did.
#[derive(Debug, Clone, PartialEq)]
pub struct RawXdp {
    /// Half of a round trip, the median.
    pub one_way_us: f64,
    /// In one direction, the median; 0 if that was not measured.
    pub packets_per_s: f64,
}

/// Reads the first two lines of figures of the example program, those over IPv4:
/// `one way 1.81 µs, …` and `0.812 M packets/s …`.
pub fn raw_xdp(text: &str) -> Result<RawXdp> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("IPv4"))
        .filter_map(|line| Some(line.split_once(':')?.1.trim_start()));
    let one_way_us = lines
        .next()
        .and_then(|line| line.strip_prefix("one way ")?.split_once(" µs"))
        .and_then(|(number, _)| positive(number));
    let millions_per_s = lines
        .next()
        .and_then(|line| line.split_once(" M packets/s"))
        .and_then(|(number, _)| figure(number));
    match one_way_us {
        Some(one_way_us) => Ok(RawXdp {
            one_way_us,
            packets_per_s: millions_per_s.unwrap_or(0.0) * 1e6,
        }),
        None => Err(missing("the ping-pong over AF_XDP", "one way", text)),
    }
}

/// What faults on purpose did to the packets of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lost {
    pub packets: f64,
    pub lost: f64,
}

impl Lost {
    /// Which part was lost, 0 to 1.
    pub fn share(self) -> f64 {
        self.lost / self.packets
    }
}

/// Reads what `sluice verbs --fault` says at the end: `of 6400 packets 64 were lost, …`. A run
/// whose device does not heed the option says something else, or nothing, and is refused.
pub fn lost(complaints: &str) -> Result<Lost> {
    let said = complaints
        .lines()
        .filter_map(|line| line.strip_prefix("sluice: fault: of "))
        .find_map(|line| {
            let (packets, rest) = line.split_once(" packets ")?;
            let (lost, _) = rest.split_once(" were lost")?;
            let (packets, lost) = (positive(packets)?, positive(lost)?);
            (lost <= packets).then_some(Lost { packets, lost })
        });
    said.ok_or_else(|| {
        missing(
            "sluice verbs --fault",
            "how many packets it lost",
            complaints,
        )
    })
}

/// Reads what the helper says: copies, and the seconds that they took.
pub fn memcpy(text: &str) -> Result<(f64, f64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [copies, "copies", "in", seconds, "seconds"] => positive(copies).zip(positive(seconds)),
        _ => None,
    }
    .ok_or_else(|| missing("the copying helper", "its result", text))
}

#[cfg(test)]
mod tests;
