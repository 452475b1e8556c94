//! MPIs over the device, each by the layers that it has for RDMA, and by no other way.

use libtest_mimic::Trial;
use sluice_tests::apps::apps_dir;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::stage::Stage;

/// Debian's MPIs are for its own interpreter.
const PYTHON: &str = "/usr/bin/python3";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("mpi/openmpi-ucx", || {
            openmpi(&["--mca", "pml", "ucx", "-x", "UCX_TLS=rc,self"])
        }),
        trial("mpi/openmpi-ofi", || {
            let provider = ["--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];
            openmpi(
                &[
                    &["--mca", "pml", "cm", "--mca", "mtl", "ofi"][..],
                    &provider,
                ]
                .concat(),
            )
        }),
        trial("mpi/mpich-ucx", mpich),
    ]
}

fn openmpi(layers: &[&str]) -> Verdict {
    let mut stage = Stage::new()?;
    // Two ranks on few processors, and root may.
    stage.set(&[
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_opal_common_ucx_devices", "any"),
        ("OMPI_MCA_opal_common_ucx_tls", "any"),
    ]);
    ranks(&mut stage, "mpirun.openmpi", layers, "openmpi")
}

fn mpich() -> Verdict {
    let mut stage = Stage::new()?;
    stage.set(&[("UCX_TLS", "rc,self")]);
    ranks(&mut stage, "mpirun.mpich", &[], "mpich")
}

fn ranks(stage: &mut Stage, mpirun: &str, layers: &[&str], kind: &str) -> Verdict {
    let script = apps_dir().join("scripts/mpi.py");
    let script = script.to_string_lossy();
    let words = [&["-n", "2"][..], layers, &[PYTHON, &script, kind]].concat();
    let outcome = stage.run(mpirun, &words)?.success()?;
    let right = outcome.text().matches("all bytes are right").count();
    ensure(right == 2, || outcome.describe())
}
