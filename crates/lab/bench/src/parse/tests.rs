//! The samples are what the programs of Debian 12 printed.

use super::*;

const REDIS: &str = include_str!("samples/redis.csv");
const PING_PONG: &str = include_str!("samples/sockperf-ping-pong.txt");
const THROUGHPUT: &str = include_str!("samples/sockperf-throughput.txt");
const IPERF: &str = include_str!("samples/iperf3.json");
const WRK: &str = include_str!("samples/wrk.txt");

fn refused<T: std::fmt::Debug>(result: Result<T>, because: &str) {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains(because), "{text}");
}

#[test]
fn redis_line_is_read_by_column_name() {
    let result = redis(REDIS, "GET").expect("sample is whole");
    assert_eq!(
        result,
        RedisResult {
            requests_per_s: 70_422.54,
            latency_avg_ms: 7.130,
            latency_p50_ms: 6.951,
            latency_p99_ms: 12.927,
        }
    );
}

#[test]
fn redis_without_the_wanted_test_is_refused() {
    refused(redis(REDIS, "SET"), "the line of SET");
    refused(redis("", "GET"), "the line of GET");
}

#[test]
fn redis_with_a_rate_that_is_no_number_is_refused() {
    refused(
        redis(&REDIS.replace("70422.54", "nan"), "GET"),
        "column rps",
    );
    refused(
        redis(&REDIS.replace("70422.54", "0.00"), "GET"),
        "above zero",
    );
}

#[test]
fn ping_pong_percentiles_are_read_through_the_colours() {
    let result = sockperf_ping_pong(PING_PONG).expect("sample is whole");
    assert_eq!(
        result,
        PingPong {
            p50_us: 32.758,
            p99_us: 53.253,
            p999_us: 89.787,
            max_us: 1132.004,
            messages: 32_500.0,
        }
    );
}

#[test]
fn ping_pong_with_lost_messages_is_refused() {
    let lossy = PING_PONG.replace("duplicated messages = 0", "duplicated messages = 2");
    refused(sockperf_ping_pong(&lossy), "no message was lost");
}

#[test]
fn ping_pong_that_could_not_connect_is_refused() {
    let text = "sockperf: ERROR: Can`t connect socket (errno=111 Connection refused)";
    refused(sockperf_ping_pong(text), "sockperf");
}

#[test]
fn throughput_is_read() {
    let result = sockperf_throughput(THROUGHPUT).expect("sample is whole");
    assert_eq!(
        result,
        Throughput {
            messages_per_s: 845_658.0,
            messages: 1_691_746.0,
        }
    );
}

#[test]
fn iperf_counts_what_the_receiver_got() {
    let result = iperf(IPERF).expect("sample is whole");
    assert_eq!(result.bytes, 2_581_987_328.0);
    assert!((result.bits_per_s - 20_650_942_397.8).abs() < 1.0);
    assert_eq!(result.retransmits, 1.0);
}

#[test]
fn iperf_error_is_passed_on() {
    let text = r#"{"start":{},"intervals":[],"end":{},"error":"unable to connect to server"}"#;
    refused(iperf(text), "unable to connect");
    refused(iperf("iperf3: command line error"), "valid JSON");
    refused(iperf("{}"), "sum_received");
}

#[test]
fn wrk_summary_is_read() {
    let result = wrk(WRK).expect("sample is whole");
    assert_eq!(
        result,
        Wrk {
            requests_per_s: 74_804.55,
            requests: 74_835.0,
            latency_p50_us: 629.0,
            latency_p99_us: 1_260.0,
        }
    );
}

#[test]
fn wrk_with_failed_requests_is_refused() {
    let not_found = format!("{WRK}  Non-2xx or 3xx responses: 91072\n");
    refused(wrk(&not_found), "91072");
    let errors = format!("{WRK}  Socket errors: connect 0, read 5, write 0, timeout 0\n");
    refused(wrk(&errors), "read 5");
}

#[test]
fn times_have_units() {
    assert_eq!(wrk_time_us("2.00s"), Some(2e6));
    assert_eq!(wrk_time_us("1.50m"), Some(90e6));
    assert_eq!(wrk_time_us("12"), None);
    assert_eq!(wrk_time_us("12 parsecs"), None);
}
