//! Reads the results out of what the benchmark programs print.
//!
//! Exit statuses are no proof: sockperf and `iperf3 -J` return 0 when they could not connect. A
//! number counts only if it was found where it belongs and is finite and positive.

pub mod verbs;

use super::error::{BenchError, Result};

fn missing(program: &str, what: &str, text: &str) -> BenchError {
    let shown: String = text.chars().take(1_000).collect();
    BenchError::Failed(format!(
        "cannot find {what} in the output of {program}, which was:\n{shown}"
    ))
}

/// Parses a number that must be finite and above zero.
fn positive(text: &str) -> Option<f64> {
    let value: f64 = text.trim().parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// One line of `redis-benchmark --csv`.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisResult {
    pub requests_per_s: f64,
    pub latency_avg_ms: f64,
    pub latency_p50_ms: f64,
    pub latency_p99_ms: f64,
}

/// Reads the line of `test` (upper case) from the output of `redis-benchmark --csv`.
///
/// Columns are found by their names: redis 6 printed only the first two.
pub fn redis(text: &str, test: &str) -> Result<RedisResult> {
    let fields = |line: &str| -> Vec<String> {
        line.split(',')
            .map(|field| field.trim().trim_matches('"').to_owned())
            .collect()
    };
    let header = text
        .lines()
        .map(fields)
        .find(|row| row.first().is_some_and(|f| f == "test"));
    let row = text.lines().map(fields).find(|row| {
        row.first()
            .and_then(|name| name.split_whitespace().next())
            .is_some_and(|name| name == test)
    });
    let (Some(header), Some(row)) = (header, row) else {
        return Err(missing(
            "redis-benchmark",
            &format!("the line of {test}"),
            text,
        ));
    };
    let column = |name: &str| -> Result<f64> {
        header
            .iter()
            .position(|title| title == name)
            .and_then(|index| row.get(index))
            .and_then(|field| field.parse::<f64>().ok())
            .filter(|value| value.is_finite() && *value >= 0.0)
            .ok_or_else(|| missing("redis-benchmark", &format!("column {name} of {test}"), text))
    };
    let requests_per_s = column("rps")?;
    if requests_per_s <= 0.0 {
        return Err(missing("redis-benchmark", "a rate above zero", text));
    }
    Ok(RedisResult {
        requests_per_s,
        latency_avg_ms: column("avg_latency_ms")?,
        latency_p50_ms: column("p50_latency_ms")?,
        latency_p99_ms: column("p99_latency_ms")?,
    })
}

/// The summary of `sockperf ping-pong`: latencies one way.
#[derive(Debug, Clone, PartialEq)]
pub struct PingPong {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Messages of the whole run, its warm-up included, for costs per message.
    pub messages: f64,
}

/// Reads the output of `sockperf ping-pong`.
pub fn sockperf_ping_pong(text: &str) -> Result<PingPong> {
    let text = &without_colours(text);
    let observation = |name: &str| -> Result<f64> {
        text.lines()
            .filter(|line| line.contains(name))
            .find_map(|line| positive(line.rsplit('=').next()?))
            .ok_or_else(|| missing("sockperf", name, text))
    };
    refuse_sockperf_losses(text)?;
    let messages = text
        .lines()
        .find(|line| line.contains("[Total Run]"))
        .and_then(|line| line.split("SentMessages=").nth(1))
        .and_then(|rest| positive(rest.split(';').next()?))
        .ok_or_else(|| missing("sockperf", "SentMessages", text))?;
    Ok(PingPong {
        p50_us: observation("percentile 50.000")?,
        p99_us: observation("percentile 99.000")?,
        p999_us: observation("percentile 99.900")?,
        max_us: observation("<MAX> observation")?,
        messages,
    })
}

/// A TCP stream that loses, doubles or reorders messages is broken; its speed means nothing.
fn refuse_sockperf_losses(text: &str) -> Result<()> {
    let counts = text.lines().find(|line| line.contains("dropped messages"));
    let clean = counts.is_some_and(|line| {
        line.split(';')
            .all(|part| part.rsplit('=').next().is_some_and(|n| n.trim() == "0"))
    });
    if clean {
        Ok(())
    } else {
        Err(missing("sockperf", "proof that no message was lost", text))
    }
}

/// The summary of `sockperf throughput`.
#[derive(Debug, Clone, PartialEq)]
pub struct Throughput {
    pub messages_per_s: f64,
    /// Messages of the whole run.
    pub messages: f64,
}

/// Reads the output of `sockperf throughput`.
pub fn sockperf_throughput(text: &str) -> Result<Throughput> {
    let text = &without_colours(text);
    let after = |mark: &str| -> Result<f64> {
        text.split(mark)
            .nth(1)
            .and_then(|rest| positive(rest.split_whitespace().next()?))
            .ok_or_else(|| missing("sockperf", mark, text))
    };
    Ok(Throughput {
        messages_per_s: after("Message Rate is ")?,
        messages: after("Total of ")?,
    })
}

fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\x1b[") {
        plain.push_str(&rest[..start]);
        let code = &rest[start + 2..];
        match code.find(|c: char| c.is_ascii_alphabetic()) {
            Some(end) => rest = &code[end + 1..],
            None => return plain,
        }
    }
    plain.push_str(rest);
    plain
}

/// The totals of one iperf3 run, as the receiver counted them.
#[derive(Debug, Clone, PartialEq)]
pub struct Iperf {
    pub bits_per_s: f64,
    pub bytes: f64,
    pub retransmits: f64,
}

/// Reads the output of `iperf3 -J`.
pub fn iperf(text: &str) -> Result<Iperf> {
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| missing("iperf3", &format!("valid JSON ({error})"), text))?;
    if let Some(error) = json.get("error").and_then(|error| error.as_str()) {
        return Err(BenchError::Failed(format!("iperf3 failed: {error}")));
    }
    let number = |path: &str| json.pointer(path).and_then(serde_json::Value::as_f64);
    let wanted = |path: &str| {
        number(path)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| missing("iperf3", path, text))
    };
    Ok(Iperf {
        bits_per_s: wanted("/end/sum_received/bits_per_second")?,
        bytes: wanted("/end/sum_received/bytes")?,
        // Only the sending side knows, and only on kernels that tell.
        retransmits: number("/end/sum_sent/retransmits").unwrap_or(0.0),
    })
}

/// The summary of one wrk run.
#[derive(Debug, Clone, PartialEq)]
pub struct Wrk {
    pub requests_per_s: f64,
    pub requests: f64,
    pub latency_p50_us: f64,
    pub latency_p99_us: f64,
}

/// Reads the output of `wrk --latency`. Runs with failed requests are refused.
pub fn wrk(text: &str) -> Result<Wrk> {
    for mark in ["Non-2xx or 3xx responses", "Socket errors"] {
        if let Some(line) = text.lines().find(|line| line.contains(mark)) {
            return Err(BenchError::Failed(format!(
                "wrk counted failed requests: {}",
                line.trim()
            )));
        }
    }
    let first_after = |mark: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(mark))
            .map(str::trim)
    };
    let requests = text
        .lines()
        .find(|line| line.contains(" requests in "))
        .and_then(|line| positive(line.split_whitespace().next()?));
    let latency = |percentile: &str| first_after(percentile).and_then(wrk_time_us);
    Ok(Wrk {
        requests_per_s: first_after("Requests/sec:")
            .and_then(positive)
            .ok_or_else(|| missing("wrk", "Requests/sec", text))?,
        requests: requests.ok_or_else(|| missing("wrk", "the number of requests", text))?,
        latency_p50_us: latency("50%").ok_or_else(|| missing("wrk", "the 50% line", text))?,
        latency_p99_us: latency("99%").ok_or_else(|| missing("wrk", "the 99% line", text))?,
    })
}

/// wrk's times carry their unit: `629.00us`, `1.26ms`, `2.00s`, `1.50m`.
fn wrk_time_us(text: &str) -> Option<f64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(number.trim().parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests;
