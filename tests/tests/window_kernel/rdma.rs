//! The module of `kernel/rdma` in guests with two devices: programs on the distribution's libibverbs, with
//! the provider of `kernel/rdma/provider`.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::guest::module::{self, Kernel, kernel_folder};
use sluice_tests::job::command;
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, trial};

use crate::build;
use crate::guest::{Extra, Guest, Outside, Server};
use crate::liar::Liar;
use crate::sure;
use crate::victim::FarEnd;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("rdma_builds_without_a_warning_on_6_1", || {
            build::rdma(&Kernel::find("bookworm")?).map(drop)
        }),
        trial("rdma_builds_without_a_warning_on_7_3", || {
            build::rdma(&Kernel::find("trixie-backports")?).map(drop)
        }),
        trial("rdma_6_1", || verbs("bookworm", SHORT, &SHORT_SAYS)),
        trial("rdma_7_3", || verbs("trixie-backports", SHORT, &SHORT_SAYS)),
        trial("rdma_others_and_ends_6_12", || {
            verbs("bookworm-backports", MORE, &MORE_SAYS)
        }),
        trial("rdma_beside_a_liar_6_12", beside_a_liar),
        trial("rdma_victim_of_lies_6_12", victim_of_lies),
        trial("rdma_with_programs_outside_6_12", with_programs_outside),
        trial("rdma_6_12", || {
            verbs("bookworm-backports", SHORT, &SHORT_SAYS)
        }),
    ]
}

/// Of one device.
const LOAD: &str = r#"
insmod $RDMA
echo "driver ${PROVIDER%-rdmav34.so}" >/etc/libibverbs.d/sluice.driver
until [ -e /sys/class/infiniband/sluice0 ]; do sleep 0.1; done
"#;

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

const SHORT_SAYS: [&str; 6] = [
    "transfers=ok",
    "waits=ok",
    "states=ok",
    "remote_lies=ok",
    "local_faults=ok",
    "not_ready=ok",
];

/// Besides: programs of others, ends of all kinds under load.
const MORE: &str = r#"
both
$VERBS limits sluice0 sluice1
ip link set lo up
# perftest measures its clock against another one at the end, which emulated processors do not always let it.
no_clock() { grep -q "Can't produce a report" /run/server /run/client; }
pair_of() {
    local server well=yes
    "$@" -d sluice0 >/run/server 2>&1 &
    server=$!
    sleep 2
    "$@" -d sluice1 127.0.0.1 >/run/client 2>&1 || well=no
    wait $server || well=no
    [ $well = yes ] || no_clock || { cat /run/client /run/server; exit 1; }
    echo "$*"; tail -n 2 /run/client
}
pair_of ibv_rc_pingpong -c
pair_of ibv_rc_pingpong -e -s 100000 -n 200
for test in send_lat write_lat read_lat; do pair_of ib_$test -n 200 -s 8; done
for test in send_bw write_bw read_bw; do pair_of ib_$test -n 200; done
pair_of ib_send_lat -n 200 -e
pair_of ib_write_bw -n 200 -b -q 4
echo others=ok
# It is killed.
for round in $(seq 20); do
    $VERBS load sluice0 sluice1 >/run/load &
    until grep -q loading /run/load; do sleep 0.1; done
    kill -9 $!
    wait $! || :
done
echo killed=20
# Devices that have just come find each other in a moment.
transfers() {
    for try in $(seq 20); do
        if $VERBS transfers $1 $2 >/run/said; then return; fi
        sleep 0.5
    done
    cat /run/said
    return 1
}
# A device of its is taken away, this end's and the other one's.
set -- /sys/bus/pci/drivers/sluice_window/0000*
for card in ${1##*/} ${2##*/} ${1##*/}; do
    $VERBS load sluice0 sluice1 >/run/load &
    until grep -q loading /run/load; do sleep 0.1; done
    echo $card >/sys/bus/pci/drivers/sluice_window/unbind
    wait $!
    grep load_ended=ok /run/load
    echo $card >/sys/bus/pci/drivers/sluice_window/bind
    until [ -e /sys/class/infiniband/sluice0 ] && [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
done
transfers sluice0 sluice1
# The module goes under load: programs keep what they have open, and nothing of it works.
for round in $(seq 10); do
    $VERBS load sluice0 sluice1 >/run/load &
    until grep -q loading /run/load; do sleep 0.1; done
    rmmod sluice_rdma
    wait $!
    grep load_ended=ok /run/load
    insmod $RDMA
    until [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
done
transfers sluice1 sluice0
$USER up $DEVICE
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo unloaded=10
"#;

const MORE_SAYS: [&str; 4] = ["limits=ok", "others=ok", "killed=20", "unloaded=10"];

/// A host outside lies in all that it can say; programs in the guest hear nothing of it.
const BESIDE: &str = r"
both
while [ ! -e /run/stop ]; do
    $VERBS transfers sluice0 sluice1 >/run/said || { cat /run/said; touch /run/bad; exit 1; }
done &
$USER settled $DEVICE
touch /run/stop
wait
[ ! -e /run/bad ]
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo beside=ok
";

fn beside_a_liar() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = Server::start(place.path())?;
    let mut liar = Liar::new(&server.socket)?;
    let mut guest = boot(
        place.path(),
        Some((&server, 2)),
        "bookworm-backports",
        BESIDE,
        None,
    )?;
    let mut is_through = false;
    let ran = guest.run(|_| {
        // Behind the last lie it is a host as any.
        is_through |= !liar.step()?;
        Ok(false)
    });
    ran.map_err(|problem| problem.with(|| liar.describe()))?;
    let console = guest.finish()?;
    sure(is_through, format!("{}\n{console}", liar.describe()))?;
    sure(console.contains("beside=ok"), console)
}

/// Programs of `sluice verbs` on this machine, and of the distribution's in the guest, whose window has no
/// doorbells.
const OUTSIDE: [&str; 6] = [
    "ibv_rc_pingpong -g 0 -c -n 200",
    "ibv_rc_pingpong -g 0 -c -s 200000 -n 100",
    "ibv_rc_pingpong -g 0 -e -n 100",
    "ibv_rc_pingpong -g 0 -c -r 4 -n 200",
    "ib_read_lat -x 0 -o 16 -n 100 -s 100000",
    "ib_write_bw -x 0 -n 100 -b",
];

fn with_programs_outside() -> Verdict {
    let place = tempfile::tempdir()?;
    let sluice = find_sluice()?;
    let window = place.path().join("window");
    let mut create = command(&sluice);
    create.args(["window", "create"]).arg(&window);
    create.args(["--size", "4M", "--hosts", "3"]);
    sure(create.output()?.status.success(), "no window")?;
    let mut outside = String::new();
    let mut inside = format!(
        "load\n{LOAD}\nip link set lo up\nnet=$(basename /sys/bus/virtio/drivers/virtio_net/*/net/*)\n\
         ip link set $net up\nip addr add 10.0.2.15/24 dev $net\n"
    );
    for (number, program) in OUTSIDE.iter().enumerate() {
        let port = 18_600 + number;
        outside += &format!(
            "timeout 60 {} verbs --device window:{} -- {program} -p {port} || echo failed: {program}; ",
            sluice.display(),
            window.display()
        );
        // It begins when the one before has ended, and is waited for.
        inside += &format!(
            "for try in $(seq 60); do\n\
             if {program} -p {port} 10.0.2.2 >/run/said 2>&1; then echo \"well: {program}\"; break; fi\n\
             grep -q \"Couldn't connect\" /run/said || {{ cat /run/said; exit 1; }}\nsleep 0.5\ndone\n"
        );
    }
    inside += "rmmod sluice_rdma\nrmmod sluice_window\nnothing_left\n";
    let outside = Outside {
        window,
        script: outside,
    };
    let mut guest = boot(
        place.path(),
        None,
        "bookworm-backports",
        &inside,
        Some(outside),
    )?;
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    for program in OUTSIDE {
        sure(
            console.contains(&format!("well: {program}")),
            console.clone(),
        )?;
    }
    sure(!console.contains("failed:"), console)
}

/// A program whose connections lead to a host outside, which lies in each of them.
fn victim_of_lies() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = Server::start(place.path())?;
    let mut far = FarEnd::new(&server.socket)?;
    let script = format!(
        "load\n{LOAD}\n$VICTIM sluice0 {}\nrmmod sluice_rdma\nrmmod sluice_window\nnothing_left\n",
        far.slot()
    );
    let device = Some((&server, 1));
    let mut guest = boot(place.path(), device, "bookworm-backports", &script, None)?;
    let ran = guest.run(|machine| {
        far.step(&machine.console())?;
        Ok(false)
    });
    ran.map_err(|problem| problem.with(|| far.describe()))?;
    let console = guest.finish()?;
    sure(
        console.contains("victim=ok"),
        format!("{}\n{console}", far.describe()),
    )?;
    sure(far.is_through(), far.describe())
}

fn verbs(suite: &'static str, script: &str, says: &[&str]) -> Verdict {
    let place = tempfile::tempdir()?;
    let server = Server::start(place.path())?;
    let mut guest = boot(place.path(), Some((&server, 2)), suite, script, None)?;
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    for word in says {
        sure(console.contains(word), format!("no {word}\n{console}"))?;
    }
    Ok(())
}

/// With two devices, the modules and programs for them.
fn boot(
    place: &Path,
    server: Option<(&Server, u32)>,
    suite: &'static str,
    script: &str,
    outside: Option<Outside>,
) -> Verdict<Guest> {
    let kernel = Kernel::find(suite)?;
    let rdma = kernel_folder().join("rdma");
    let include = format!("-I{}", kernel_folder().join("include").display());
    let program = module::program(
        place,
        "verbs",
        &[rdma.join("test/verbs.c")],
        &["-O2", "-Wl,--no-as-needed", "-libverbs"],
    )?;
    let provider = module::program(
        place,
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
    let victim = module::program(
        place,
        "victim",
        &[rdma.join("test/victim.c")],
        &["-O2", "-Wl,--no-as-needed", "-libverbs"],
    )?;
    let made = build::rdma(&kernel)?;
    let extra = Extra {
        modules: vec!["ib_uverbs", "virtio_net"],
        outside,
        driver: Some(made.driver),
        prelude: format!(
            "RDMA={}\nVERBS={}\nVICTIM={}\nPROVIDER={}\n{PRELUDE}",
            made.rdma.display(),
            program.display(),
            victim.display(),
            provider.display()
        ),
    };
    Guest::boot(&kernel, server, extra, script)
}
