//! The module of `kernel/rdma` in guests with two devices: programs on the distribution's libibverbs, with
//! the provider of `kernel/rdma/provider`.

use libtest_mimic::Trial;
use sluice_tests::guest::module::{self, Kernel, kernel_folder};
use sluice_tests::suite::{Verdict, trial};

use crate::build;
use crate::guest::{Extra, Guest, Server};
use crate::sure;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("rdma_builds_without_a_warning_on_6_1", || {
            build::rdma(&Kernel::find("bookworm")?).map(drop)
        }),
        trial("rdma_builds_without_a_warning_on_7_3", || {
            build::rdma(&Kernel::find("trixie-backports")?).map(drop)
        }),
        trial("rdma_6_12", || verbs("bookworm-backports", WHOLE)),
        trial("rdma_6_1", || verbs("bookworm", SHORT)),
        trial("rdma_7_3", || verbs("trixie-backports", SHORT)),
    ]
}

const PRELUDE: &str = r#"
both() {
    load
    insmod $RDMA
    echo "driver ${PROVIDER%-rdmav34.so}" >/etc/libibverbs.d/sluice.driver
    until [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
}
"#;

/// What every kernel does.
const SHORT: &str = r"
both
ibv_devinfo
for command in transfers waits states remote_lies local_faults not_ready; do
    $VERBS $command sluice0 sluice1
done
$VERBS transfers sluice0 sluice0
rmmod sluice_rdma
rmmod sluice_window
nothing_left
";

const WHOLE: &str = SHORT;

fn verbs(suite: &'static str, script: &str) -> Verdict {
    let place = tempfile::tempdir()?;
    let kernel = Kernel::find(suite)?;
    let server = Server::start(place.path())?;
    let rdma = kernel_folder().join("rdma");
    let include = format!("-I{}", kernel_folder().join("include").display());
    let program = module::program(
        place.path(),
        "verbs",
        &[rdma.join("test/verbs.c")],
        &["-O2", "-Wl,--no-as-needed", "-libverbs"],
    )?;
    let provider = module::program(
        place.path(),
        "libsluice-rdmav34.so",
        &[rdma.join("provider/sluice.c")],
        &[
            "-O2",
            "-shared",
            "-fPIC",
            &include,
            "-Wl,--no-as-needed",
            "-libverbs",
        ],
    )?;
    let made = build::rdma(&kernel)?;
    let extra = Extra {
        modules: vec!["ib_uverbs"],
        driver: Some(made.driver),
        prelude: format!(
            "RDMA={}\nVERBS={}\nPROVIDER={}\n{PRELUDE}",
            made.rdma.display(),
            program.display(),
            provider.display()
        ),
    };
    let mut guest = Guest::boot(&kernel, &server, 2, extra, script)?;
    guest.run(|| Ok(false))?;
    let console = guest.finish()?;
    println!("{console}");
    for word in [
        "transfers=ok",
        "waits=ok",
        "states=ok",
        "remote_lies=ok",
        "local_faults=ok",
        "not_ready=ok",
    ] {
        sure(console.contains(word), format!("no {word}\n{console}"))?;
    }
    Ok(())
}
