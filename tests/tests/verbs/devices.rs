//! Programs that look at devices.

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::suite::{Verdict, ensure, trial};
use sluice_tests::verbs::compile_with;

use crate::stage::{LIMIT, Stage};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("ibv_devices", devices),
        trial("ibv_devinfo/verbose", devinfo),
        trial("ibv_devinfo/list", list),
        trial("ibv_asyncwatch", asyncwatch),
        trial("devices/of-a-program-with-an-rpath", rpath),
        trial("sluice/status-of-the-program", status),
    ]
}

fn devices() -> Verdict {
    let outcome = Stage::new()?.run("ibv_devices", &[])?.success()?;
    ensure(outcome.text().contains("sluice0"), || outcome.describe())
}

fn list() -> Verdict {
    let outcome = Stage::new()?.run("ibv_devinfo", &["-l"])?.success()?;
    ensure(outcome.text().contains("1 HCA found"), || {
        outcome.describe()
    })
}

fn devinfo() -> Verdict {
    let outcome = Stage::new()?.run("ibv_devinfo", &["-v"])?.success()?;
    let text = outcome.text();
    for wanted in [
        "hca_id:\tsluice0",
        "transport:\t\t\tInfiniBand",
        "phys_port_cnt:\t\t\t1",
        "state:\t\t\tPORT_ACTIVE",
        "link_layer:\t\tEthernet",
        "RoCE v2",
        "GID[  0]",
        "pkey_tbl_len:\t\t1",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure(squeezed(&text).contains(&squeezed(wanted)), || {
            format!("no '{wanted}' in\n{}", outcome.describe())
        })?;
    }
    Ok(())
}

/// It waits for events until it is told to end.
fn asyncwatch() -> Verdict {
    let mut stage = Stage::new()?;
    let mut watch = stage.start("stdbuf", &["-oL", "ibv_asyncwatch"])?;
    let mut seen = String::new();
    let stdout = watch.stdout_path().to_owned();
    watch.await_ready(LIMIT, "line about the fd", || {
        seen = std::fs::read_to_string(&stdout).unwrap_or_default();
        seen.contains("async event FD")
    })?;
    watch.signal(Signal::TERM)?;
    let outcome = watch.finish(LIMIT)?;
    ensure(seen.contains("sluice0"), || outcome.describe())
}

/// `DT_RPATH` comes before `LD_LIBRARY_PATH`, but not before what is preloaded.
fn rpath() -> Verdict {
    const TO_THE_SYSTEM: &str = "-Wl,--disable-new-dtags,-rpath,/usr/lib/x86_64-linux-gnu";
    let mut stage = Stage::new()?;
    let program = compile_with("files", stage.folder(), &[TO_THE_SYSTEM])?;
    let program = program.to_string_lossy();
    stage.run(&program, &[])?.success()?;
    let options = ["--no-preload".to_owned()];
    let outcome = stage.start_with(&program, &[], &options)?.finish(LIMIT)?;
    ensure(outcome.describe().contains("no device"), || {
        outcome.describe()
    })
}

/// The exit status is the program's own, here that of a device that does not exist.
fn status() -> Verdict {
    let outcome = Stage::new()?.run("ibv_devinfo", &["-d", "nosuch0"])?;
    ensure(
        outcome.status.code().is_some_and(|c| c != 0 && c != 125),
        || outcome.describe(),
    )
}
