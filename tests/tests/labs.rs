//! The laboratories themselves.
use sluice_tests::guest::stranger;
use sluice_tests::suite::{self, ensure, trial};
use std::process::ExitCode;
fn main() -> ExitCode {
    let trials = vec![trial("guest/boots", || {
        let lab = stranger::borrow()?;
        println!("boot {:?}", lab.guest.boot_time());
        println!("{}", lab.guest.console());
        println!(
            "{}",
            lab.guest.shell(
                &lab.host,
                "uname -a; free -m; rdma link; ibv_devinfo; ip a; dmesg | tail -5"
            )?
        );
        println!("{:?}", lab.guest.twins(&lab.host, 1500)?);
        println!("{}", lab.guest.shell(&lab.host, "rdma link; ip -4 rule; ibv_devinfo -v -d rxe1 | grep -A5 GID; ibv_devinfo -v | grep transport")?);
        ensure(true, || String::new())
    })];
    let c = suite::run(trials, 1);
    stranger::dismiss();
    c.exit_code()
}
