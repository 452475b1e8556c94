//! The samples are what the programs of Debian 12 printed.

use super::*;

const LATENCY: &str = include_str!("../samples/perftest-lat.txt");
const RATE: &str = include_str!("../samples/perftest-bw.txt");
const UCX: &str = include_str!("../samples/ucx-tag-lat.csv");
const UCX_BANDWIDTH: &str = include_str!("../samples/ucx-put-bw.csv");
const PING_PONG: &str = include_str!("../samples/fi_pingpong.txt");

fn refused<T: std::fmt::Debug>(result: Result<T>, because: &str) {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains(because), "{text}");
}

#[test]
fn perftest_rows_are_read_below_their_header() {
    let latency = perftest_latency("ib_write_lat", LATENCY).expect("sample is whole");
    assert_eq!(latency.iterations, 20_000.0);
    assert!(latency.min_us <= latency.typical_us && latency.typical_us <= latency.p99_us);
    let rate = perftest_rate("ib_write_bw", RATE).expect("sample is whole");
    // One second: as many as the rate says.
    assert!(
        (rate.iterations / rate.messages_per_s - 1.0).abs() < 0.1,
        "{rate:?}"
    );
}

#[test]
fn perftest_without_a_result_is_refused() {
    let cut = LATENCY.rsplit_once("#bytes").expect("it has a header").0;
    refused(perftest_latency("ib_write_lat", cut), "t_typical");
    refused(perftest_latency("ib_write_lat", RATE), "t_typical");
    refused(perftest_rate("ib_write_bw", LATENCY), "MsgRate");
    let nothing = " #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n\
                   64 0 0.00 0.00 0.00\n";
    refused(perftest_rate("ib_write_bw", nothing), "five figures");
}

#[test]
fn ucx_counts_the_whole_run_and_not_its_parts() {
    let result = ucx(UCX).expect("sample is whole");
    assert_eq!(
        result,
        UcxResult {
            percentile_us: 0.896,
            avg_us: 6.068,
            messages_per_s: 85_343.0,
        }
    );
    let result = ucx(UCX_BANDWIDTH).expect("sample is whole");
    assert_eq!(result.messages_per_s, 300_895.0);
}

#[test]
fn ucx_that_did_not_come_to_an_end_is_refused() {
    let parts: String = UCX
        .lines()
        .filter(|line| line.starts_with("iter") || line.starts_with('['))
        .map(|line| format!("{line}\n"))
        .collect();
    refused(ucx(&parts), "the median");
    refused(ucx(""), "the median");
}

#[test]
fn ping_pong_is_read_by_column_name() {
    assert_eq!(libfabric(PING_PONG).expect("sample is whole"), 24.25);
    refused(libfabric("bytes #sent\n"), "usec/xfer");
    refused(libfabric(""), "usec/xfer");
}

#[test]
fn copies_need_a_time() {
    let result = memcpy("1000 copies in 0.5 seconds\n").expect("well formed");
    assert_eq!(result, (1000.0, 0.5));
    refused(memcpy("0 copies in 0.5 seconds\n"), "its result");
}

#[test]
fn bare_af_xdp_is_read_without_a_rate_and_with_one() {
    let latency = "MTU 1500: native, copied\n  IPv4     8 B: one way 1.81 µs, best 1.75; of which \
                   send 0.05, flush 0.99\n";
    let result = raw_xdp(latency).expect("sample is whole");
    assert_eq!((result.one_way_us, result.packets_per_s), (1.81, 0.0));
    let both = latency.to_owned()
        + "  IPv4     8 B: 0.812 M packets/s (0.05 Gb/s), best 0.9 (0.06); 32 packets a call, \
           0.0 % lost\n";
    let result = raw_xdp(&both).expect("sample is whole");
    assert!((result.packets_per_s - 812_000.0).abs() < 1.0, "{result:?}");
    refused(raw_xdp("SKIP pingpong: needs root\n"), "one way");
    refused(raw_xdp("  IPv4     8 B: one way NaN µs\n"), "one way");
}

#[test]
fn a_run_without_lost_packets_is_no_lossy_one() {
    let said = "sluice: fault: seed=7\nsluice: fault: of 6400 packets 64 were lost, 0 doubled, 0 \
                late, 0 damaged (seed 7)\n";
    assert_eq!(lost(said).expect("it lost some").share(), 0.01);
    for other in [
        "sluice: fault: of 6400 packets 0 were lost, 0 doubled, 0 late, 0 damaged (seed 7)\n",
        "sluice: fault: nothing happens to devices over a network\n",
        "",
    ] {
        refused(lost(other), "how many packets");
    }
}
