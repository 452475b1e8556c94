//! Programs that are not rdma-core's: qperf, libfabric's and UCX's tools, pyverbs.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::job::{Outcome, command, run};
use sluice_tests::lab::find_sluice;
use sluice_tests::net::{free_port, is_listening};
use sluice_tests::suite::{Verdict, ensure, skip, trial};
use sluice_tests::verbs::finish_both;

use crate::stage::{LIMIT, Stage};

/// Tests of pyverbs, and how many of each ask for what is refused (docs/limitations.md): on-demand
/// paging, DMA buffers, raw packets, allocators of parent domains. Not among them:
/// - of `test_addr`, the one that wants an address handle without a global route to be refused;
///   qperf makes such handles;
/// - `test_rdmacm`, which looks for a network interface in sysfs and skips itself, `test_shared_pd`
///   and the import of device memory, which pass on a descriptor of the kernel's device;
/// - tests of raw packets, tag matching and vendors.
const PYVERBS: [(&str, usize); 18] = [
    ("test_addr.AHTest.test_create_ah", 0),
    ("test_addr.AHTest.test_destroy_ah", 0),
    ("test_atomic", 0),
    ("test_cq", 0),
    ("test_cq_events", 0),
    ("test_cqex", 0),
    ("test_device.DeviceTest", 0),
    ("test_device.DMTest", 0),
    ("test_fork", 0),
    ("test_mr.MRTest", 0),
    ("test_mr.MWTest", 0),
    ("test_mr.DeviceMemoryAPITest", 0),
    ("test_odp", 10),
    ("test_parent_domain", 5),
    ("test_pd", 0),
    ("test_qp", 5),
    ("test_qpex", 1),
    ("test_relaxed_ordering", 0),
];

/// Those of them whose outcome the transport decides.
const WINDOW: [&str; 7] = [
    "test_atomic",
    "test_cq_events",
    "test_fork",
    "test_mr.MWTest",
    "test_qp",
    "test_qpex",
    "test_relaxed_ordering",
];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("qperf/rc-uc-ud", qperf),
        trial("fi_info/verbs", fi_info),
        trial("fi_pingpong/msg", || fi_pingpong("verbs", "msg")),
        trial("fi_pingpong/dgram", || fi_pingpong("verbs", "dgram")),
        trial("fi_pingpong/rdm", || fi_pingpong("verbs;ofi_rxm", "rdm")),
        trial("fi_pingpong/rxd", || fi_pingpong("verbs;ofi_rxd", "rdm")),
        trial("ucx/finds-the-device", ucx_info),
        // With datagrams for its first words.
        trial("ucx/rc", || ucx_perftest("rc")),
        trial("ucx/ud", || ucx_perftest("ud")),
    ];
    trials.extend(PYVERBS.iter().map(|(name, skips)| {
        trial(format!("pyverbs/{name}"), move || {
            pyverbs(name, *skips, false)
        })
    }));
    let over_a_window = PYVERBS.iter().filter(|(name, _)| WINDOW.contains(name));
    trials.extend(over_a_window.map(|(name, skips)| {
        let row = format!("pyverbs/window/{name}");
        trial(row, move || pyverbs(name, *skips, true))
    }));
    trials
}

fn qperf() -> Verdict {
    const TESTS: [&str; 10] = [
        "rc_lat",
        "rc_bw",
        "rc_rdma_write_lat",
        "rc_rdma_read_bw",
        "rc_compare_swap_mr",
        "uc_lat",
        "ud_lat",
        "ud_bw",
        // These look at the values.
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    let mut stage = Stage::new()?;
    let number = free_port()?;
    let port = number.to_string();
    let mut server = stage.start("qperf", &["-lp", &port])?;
    server.await_ready(LIMIT, "listening socket", || is_listening(number))?;
    let mut arguments = vec!["-lp", &port, "-to", "60", "-t", "1", "127.0.0.1"];
    arguments.extend(TESTS);
    let client = stage.start("qperf", &arguments)?.finish(LIMIT)?.success()?;
    // The server goes on for ever; dropping it ends it.
    let text = client.text();
    for test in TESTS {
        ensure(text.contains(&format!("{test}:")), || {
            format!("{test} has no result\n{}", client.describe())
        })?;
    }
    Ok(())
}

fn fi_info() -> Verdict {
    let outcome = Stage::new()?
        .run("fi_info", &["-p", "verbs", "-t", "FI_EP_MSG"])?
        .success()?;
    ensure(outcome.text().contains("domain: sluice0"), || {
        outcome.describe()
    })
}

fn fi_pingpong(provider: &str, endpoint: &str) -> Verdict {
    let mut stage = Stage::new()?;
    let number = free_port()?;
    let port = number.to_string();
    let common = [
        "-p", provider, "-e", endpoint, "-S", "64", "-I", "1000", "-c",
    ];
    let with = |more: &[&'static str], port: &str| -> Vec<String> {
        let words = common.iter().chain(more).map(|word| (*word).to_owned());
        words.chain([port.to_owned()]).collect()
    };
    let start = |stage: &mut Stage, words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stage.start("fi_pingpong", &words)
    };
    let mut server = start(&mut stage, &with(&["-B"], &port))?;
    server.await_ready(LIMIT, "listening socket", || is_listening(number))?;
    let mut words = with(&["-P"], &port);
    words.push("127.0.0.1".to_owned());
    let client = start(&mut stage, &words)?.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    ensure(rows(&client) == 1, || client.describe())
}

/// Rows of results, which begin with the size.
fn rows(outcome: &Outcome) -> usize {
    let text = outcome.text();
    text.lines().filter(|line| line.starts_with("64 ")).count()
}

/// It passes over a device whose node it may not open.
fn ucx_info() -> Verdict {
    let outcome = Stage::new()?.run("ucx_info", &["-d"])?.success()?;
    let text = outcome.text();
    let found = ["rc_verbs", "ud_verbs"].iter().all(|transport| {
        let heading = format!("Transport: {transport}");
        let mut after = text.split(&heading).skip(1);
        after.any(|text| {
            text.trim_start_matches(['\n', '#', ' '])
                .starts_with("Device: sluice0:1")
        })
    });
    ensure(found, || outcome.describe())
}

/// UCX by one transport of the device and no other way: it fails where that does not do.
fn ucx_perftest(transport: &'static str) -> Verdict {
    let mut stage = Stage::new()?;
    // Short and long messages, puts, and an atomic.
    for test in [
        ["-t", "tag_lat", "-s", "8", "-n", "2000", "-w", "100"],
        ["-t", "tag_bw", "-s", "300000", "-n", "200", "-w", "10"],
        ["-t", "ucp_put_lat", "-s", "64", "-n", "2000", "-w", "100"],
        ["-t", "ucp_fadd", "-s", "8", "-n", "2000", "-w", "100"],
    ] {
        let number = free_port()?;
        let port = number.to_string();
        let start = |stage: &mut Stage, host: &[&str]| {
            let words = [&["-p", &port][..], &test, host].concat();
            let mut command = stage.verbs("ucx_perftest", &words, &[])?;
            command
                .env("UCX_TLS", transport)
                .env("UCX_NET_DEVICES", "sluice0:1");
            stage.launch(command, "ucx_perftest")
        };
        let mut server = start(&mut stage, &[])?;
        server.await_ready(LIMIT, "listening socket", || is_listening(number))?;
        let client = start(&mut stage, &["127.0.0.1"])?;
        finish_both([server, client], LIMIT)?;
    }
    Ok(())
}

/// Debian puts the tests of pyverbs among the documents, compressed.
const PYVERBS_TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// The interpreter that Debian's modules are for.
const PYTHON: &str = "/usr/bin/python3";

fn pyverbs(name: &str, skips_max: usize, over_a_window: bool) -> Verdict {
    if !Path::new(PYVERBS_TESTS).is_dir() {
        return skip("python3-pyverbs is not installed; scripts/setup test");
    }
    let dir = tempfile::tempdir()?;
    let mut copy = command("sh");
    copy.current_dir(dir.path()).args([
        "-c",
        "cp -r \"$0\" tests && gunzip -rf tests",
        PYVERBS_TESTS,
    ]);
    run(copy, dir.path(), "copy", LIMIT)?.success()?;
    let mut options = Vec::new();
    if over_a_window {
        let window = dir.path().join("window");
        let mut create = command(find_sluice()?);
        create.args(["window", "create"]).arg(&window);
        create.args(["--size", "64M", "--hosts", "8"]);
        run(create, dir.path(), "create", LIMIT)?.success()?;
        let device = format!("window:{}", window.display());
        options.extend(["--device".to_owned(), device]);
    }
    let mut tests = Stage::new()?.verbs(
        PYTHON,
        &["tests/run_tests.py", "--dev", "sluice0", name],
        &options,
    )?;
    tests
        .current_dir(dir.path())
        .env("PYTHONPATH", format!("{0}:{0}/tests", dir.path().display()));
    let outcome = run(tests, dir.path(), "pyverbs", LIMIT)?.success()?;
    // unittest reports on standard error.
    let said = outcome.describe();
    let skipped = said
        .rsplit_once("skipped=")
        .and_then(|(_, rest)| rest.split(')').next()?.parse::<usize>().ok())
        .unwrap_or(0);
    ensure(said.contains("OK") && skipped <= skips_max, || {
        format!("{skipped} skipped, {skips_max} expected\n{said}")
    })
}
