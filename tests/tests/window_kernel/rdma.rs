//! The module of `kernel/rdma` in guests with two devices: programs on the distribution's libibverbs, with
//! the provider of `kernel/rdma/provider`.

use std::path::Path;

use libtest_mimic::Trial;
use sluice_tests::guest::module::{self, Kernel, kernel_folder};
use sluice_tests::guest::window;
use sluice_tests::job::command;
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, trial};

use crate::build;
use crate::guest::{Extra, Guest, HOSTS, Outside, Server, serve};
use crate::liar::Liar;
use crate::outsider::Outsider;
use crate::stranger::{self, Stranger};
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
        trial("rdma_7_3", || {
            verbs("trixie-backports", &by_calls(), &SHORT_SAYS)
        }),
        trial("rdma_others_and_ends_6_12", || {
            verbs("bookworm-backports", MORE, &MORE_SAYS)
        }),
        trial("rdma_queues_that_lie_6_12", || {
            let others = ["dummy", "crc32_generic", "rdma_rxe"];
            verbs_beside(&others, "bookworm-backports", QUEUES, &QUEUES_SAYS)
        }),
        trial("rdma_beside_a_liar_6_12", beside_a_liar),
        trial("rdma_victim_of_lies_6_12", victim_of_lies),
        trial("rdma_lies_in_datagrams_6_12", lies_in_datagrams),
        trial("rdma_with_programs_outside_6_12", with_programs_outside),
        trial("rdma_cm_6_12", || {
            verbs("bookworm-backports", CM, &["cm=ok", "addresses=ok"])
        }),
        trial("rdma_6_12", || {
            verbs("bookworm-backports", SHORT, &SHORT_SAYS)
        }),
    ]
}

/// Of one device.
pub const LOAD: &str = r#"
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
# Two network namespaces with a device's each.
hosts() {
    local number device gid try
    ip link set lo up
    for number in 1 2; do
        device=/sys/class/infiniband/sluice$((number - 1))
        net=$(basename $device/device/net/*)
        [ -e /run/netns/host$number ] || ip netns add host$number
        ip link set $net netns host$number
        ip -n host$number link set lo up
        ip -n host$number addr add 10.9.0.$number/24 dev $net
        ip -n host$number addr add fd09::$number/64 dev $net nodad
        ip -n host$number link set $net up
        for gid in ffff:0a09:000$number fd09:; do
            for try in $(seq 100); do
                if grep -qs $gid $device/ports/2/gids/*; then break; fi
                sleep 0.1
            done
        done
    done
}
at() { nsenter --net=/run/netns/host$1 timeout ${AT_SECONDS:-60} $2; }
# Both are started again until the client finds who listens. perftest's client connects twice (rdma_cm_client_connection),
# the second time without knowing whether the server listens for that already: if not it is rejected for its service ID, and its
# own way to try again crashes in librdmacm. Its server then waits for that connection for ever, and rejects all others.
talk() {
    local server try
    for try in $(seq 15); do
        # The program itself, so that it is what is ended.
        (exec nsenter --net=/run/netns/host2 timeout ${AT_SECONDS:-60} $1) >/run/server 2>&1 &
        server=$!
        sleep $((try / 2)).5
        if at 1 "$2" >/run/client 2>&1; then break; fi
        cp /run/client /run/client$try
        kill $server 2>/dev/null || :
        wait $server || :
        [ $try -lt 15 ] || { cat /run/client?* /run/server; exit 1; }
    done
    wait $server || { cat /run/server /run/client; exit 1; }
    rm -f /run/client?*
    echo "well: $2 (try $try)"
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
for command in atomics invalidates uc srq datagrams groups; do
    $SERVICES $command sluice0 sluice1
    $SERVICES $command sluice0 sluice0
done
# Windows are bound where queues are mapped.
for command in first_kind second_kind left; do
    env -u SLUICE_RDMA_FAST $WINDOWS $command sluice0 sluice1
done
env -u SLUICE_RDMA_FAST $WINDOWS second_kind sluice0 sluice0
rdma resource show >/run/left
fails grep -E mr.[1-9] /run/left
# Runs as it is loaded, and fails where something is not so.
insmod $TEST
rmmod sluice_rdma_test
echo in_the_kernel=ok
rmmod sluice_rdma
rmmod sluice_window
nothing_left
";

const SHORT_SAYS: [&str; 16] = [
    "transfers=ok",
    "waits=ok",
    "states=ok",
    "remote_lies=ok",
    "local_faults=ok",
    "not_ready=ok",
    "atomics=ok",
    "invalidates=ok",
    "uc=ok",
    "srq=ok",
    "datagrams=ok",
    "groups=ok",
    "first_kind=ok",
    "second_kind=ok",
    "left=ok",
    "in_the_kernel=ok",
];

/// The same, and queues are mapped into no program.
fn by_calls() -> String {
    format!("export SLUICE_RDMA_FAST=0\n{SHORT}")
}

/// Besides: programs of others, ends of all kinds under load.
const MORE: &str = r#"
both
$VERBS limits sluice0 sluice1
ip link set lo up
pair_of() {
    local server well=yes
    "$@" -d sluice0 >/run/server 2>&1 &
    server=$!
    # Its port, 18515. A client that comes before leaves the server waiting for ever.
    until grep -q ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done
    "$@" -d sluice1 127.0.0.1 >/run/client 2>&1 || well=no
    wait $server || well=no
    [ $well = yes ] || { cat /run/client /run/server; exit 1; }
    echo "$*"; tail -n 2 /run/client
}
pair_of ibv_rc_pingpong -c
pair_of ibv_rc_pingpong -e -s 100000 -n 200
for test in send_lat write_lat read_lat; do pair_of ib_$test -F -n 200 -s 8; done
for test in send_bw write_bw read_bw; do pair_of ib_$test -F -n 200; done
pair_of ib_send_lat -F -n 200 -e
pair_of ib_write_bw -F -n 200 -b -q 4
echo others=ok
# It is killed (and by trial rdma_ends, which counts what is left).
for round in $(seq 8); do
    $VERBS load sluice0 sluice1 >/run/load &
    until grep -q loading /run/load; do sleep 0.1; done
    kill -9 $!
    wait $! || :
done
echo killed=8
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
for round in $(seq 5); do
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
echo unloaded=5
"#;

const MORE_SAYS: [&str; 4] = ["limits=ok", "others=ok", "killed=8", "unloaded=5"];

/// Programs that lie in the queues that they have mapped, that are killed while they do so, and whose device and
/// module go; and one that maps none.
const QUEUES: &str = r#"
# A device of another driver, at which libibverbs looks first.
ip link add dummy7 type dummy
ip link set dummy7 up
rdma link add rxe0 type rxe netdev dummy7
both
ibv_devinfo -l
while [ ! -e /run/stop ]; do
    $VERBS transfers sluice0 sluice1 >/run/said || { cat /run/said; touch /run/bad; exit 1; }
done &
$QUEUES lies sluice0 sluice1
touch /run/stop
wait
[ ! -e /run/bad ]
rdma resource show >/run/before
$QUEUES answers sluice0 sluice1
rdma resource show >/run/after
cmp /run/before /run/after
SLUICE_RDMA_FAST=0 $VERBS transfers sluice0 sluice1
# Built call by call, and read field by field.
export EXTENDED=1
$EXTENDED_PROGRAM built sluice0 sluice1
for command in transfers waits states remote_lies local_faults; do
    $VERBS $command sluice0 sluice1
done
for command in atomics invalidates; do
    $SERVICES $command sluice0 sluice1
done
for command in first_kind second_kind; do
    $WINDOWS $command sluice1 sluice0
done
unset EXTENDED
storm() {
    $QUEUES storm sluice0 sluice1 >/run/storm &
    until grep -q storming /run/storm; do sleep 0.1; done
}
for round in 1 2 3; do
    storm
    kill -9 $!
    wait $! || :
done
$VERBS transfers sluice0 sluice1
fails grep sr_shared /proc/vmallocinfo
set -- /sys/bus/pci/drivers/sluice_window/0000*
storm
echo ${1##*/} >/sys/bus/pci/drivers/sluice_window/unbind
wait $!
grep storm_ended=ok /run/storm
echo ${1##*/} >/sys/bus/pci/drivers/sluice_window/bind
until [ -e /sys/class/infiniband/sluice0 ] && [ -e /sys/class/infiniband/sluice1 ]; do sleep 0.1; done
rdma link delete rxe0
storm
rmmod sluice_rdma
wait $!
grep storm_ended=ok /run/storm
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo queues=ok
"#;

const QUEUES_SAYS: [&str; 9] = [
    "lies=ok",
    "answers=ok",
    "built=ok",
    "transfers=ok",
    "states=ok",
    "remote_lies=ok",
    "atomics=ok",
    "second_kind=ok",
    "queues=ok",
];

/// By addresses, between two network namespaces with a device's each.
const CM: &str = r#"
both
hosts
talk "rping -s -a 10.9.0.2 -C 20 -S 3000" "rping -c -a 10.9.0.2 -C 20 -S 3000 -V"
talk "rping -s -a fd09::2 -C 5" "rping -c -a fd09::2 -C 5 -V"
talk "ucmatose -b 10.9.0.2 -C 20 -S 9000" "ucmatose -s 10.9.0.2 -C 20 -S 9000"
talk "udaddy -b 10.9.0.2" "udaddy -s 10.9.0.2"
talk "ib_send_bw -F -R -n 100" "ib_send_bw -F -R -n 100 10.9.0.2"
talk "ib_atomic_bw -F -R -n 100" "ib_atomic_bw -F -R -n 100 10.9.0.2"
echo cm=ok
# An address that is taken away is nobody's, and nobody answers.
at 2 "rping -s -P -a 0.0.0.0" >/run/server 2>&1 &
until at 1 "rping -c -a 10.9.0.2 -C 1"; do sleep 0.5; done
ip -n host2 addr del 10.9.0.2/24 dev $net
fails at 1 "timeout 4 rping -c -a 10.9.0.2 -C 1"
kill $!
echo addresses=ok
ip netns del host1
ip netns del host2
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
"#;

/// A host outside lies in all that it can say; programs in the guest hear nothing of it.
const BESIDE: &str = r"
both
while [ ! -e /run/stop ]; do
    $VERBS transfers sluice0 sluice1 >/run/said || { cat /run/said; touch /run/bad; exit 1; }
done &
# The other device, the host that lies, and the one that comes when it has said all.
$USER three $DEVICE
touch /run/stop
wait
[ ! -e /run/bad ]
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo beside=ok
";

/// A host outside lies to one device's datagrams, UC and connection manager; connections between the two
/// are made meanwhile.
const DATAGRAMS: &str = r#"
both
hosts
AT_SECONDS=250
at 1 "rping -s -P -a 10.9.0.1 -p $PORT" >/run/listener 2>&1 &
listener=$!
(
    until [ -e /run/stop ]; do
        talk "rping -s -a 10.9.0.2 -C 5" "rping -c -a 10.9.0.2 -C 5 -V"
        talk "rping -s -a 10.9.0.2 -C 5 -p 8888" "rping -c -a 10.9.0.2 -C 5 -V -p 8888"
    done
) &
talks=$!
echo "lid $(cat /sys/class/infiniband/sluice0/ports/1/lid)"
$STRANGER sluice0 $SLOT
touch /run/stop
wait $talks
# It may have had enough of who does not answer it.
kill $listener || :
wait $listener || :
talk "rping -s -a 10.9.0.2 -C 5" "rping -c -a 10.9.0.2 -C 5 -V"
$VERBS transfers sluice0 sluice1
ip netns del host1
ip netns del host2
rmmod sluice_rdma
$USER unlent $DEVICE
rmmod sluice_window
nothing_left
echo datagrams=ok
"#;

fn lies_in_datagrams() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let mut stranger = Stranger::new(&server.socket)?;
    let script = format!(
        "SLOT={}\nPORT={}\n{DATAGRAMS}",
        stranger.slot(),
        stranger::PORT
    );
    let device = Some((&server, 2));
    let guest = boot(place.path(), device, "bookworm-backports", &script, None)?;
    let console = run_beside(guest, &mut stranger, Stranger::step, Stranger::describe)?;
    let said = format!("{}\n{console}", stranger.describe());
    sure(console.contains("stranger=ok"), said.clone())?;
    sure(console.contains("datagrams=ok"), said.clone())?;
    // What ib_mad says of what is none of its own.
    sure(!console.contains("MAD received"), said.clone())?;
    sure(stranger.is_through(), said)
}

fn beside_a_liar() -> Verdict {
    let place = tempfile::tempdir()?;
    let server = Server::start(place.path(), "4M", HOSTS + 1)?;
    let mut liar = Liar::new(&server.socket)?;
    let device = Some((&server, 2));
    let guest = boot(place.path(), device, "bookworm-backports", BESIDE, None)?;
    let mut last = None;
    // Behind the last lie it is a host as any.
    let step = |liar: &mut Liar, _: &str| {
        let is_through = !liar.step()?;
        if is_through && last.is_none() {
            last = Some(Outsider::new(&server.socket)?);
        }
        last.as_mut().map_or(Ok(()), |last| last.step().map(drop))
    };
    let console = run_beside(guest, &mut liar, step, Liar::describe)?;
    sure(last.is_some(), format!("{}\n{console}", liar.describe()))?;
    sure(console.contains("beside=ok"), console)
}

/// Programs of `sluice verbs` on this machine, and of the distribution's in the guest, whose window has no
/// doorbells.
const OUTSIDE: [&str; 6] = [
    "ibv_rc_pingpong -g 0 -c -n 200",
    "ibv_rc_pingpong -g 0 -c -s 200000 -n 100",
    "ibv_rc_pingpong -g 0 -e -n 100",
    "ibv_rc_pingpong -g 0 -c -r 4 -n 200",
    "ib_read_lat -F -x 0 -o 16 -n 100 -s 100000",
    "ib_write_bw -F -x 0 -n 100 -b",
];

/// By addresses: what runs outside, and in the guest.
const OUTSIDE_CM: [(&str, &str); 3] = [
    (
        "rping -s -a 10.9.0.2 -C 10 -S 3000",
        "rping -c -a 10.9.0.2 -C 10 -S 3000 -V",
    ),
    (
        "ucmatose -b 10.9.0.2 -C 5 -S 9000",
        "ucmatose -s 10.9.0.2 -C 5 -S 9000",
    ),
    (
        "ib_send_bw -F -R -n 100",
        "ib_send_bw -F -R -n 100 10.9.0.2",
    ),
];

fn with_programs_outside() -> Verdict {
    let place = tempfile::tempdir()?;
    let sluice = find_sluice()?;
    let window = place.path().join("window");
    let mut create = command(&sluice);
    create.args(["window", "create"]).arg(&window);
    create.args(["--size", "4M", "--hosts", "3"]);
    sure(create.output()?.status.success(), "no window")?;
    // A guest that stands still for three seconds is dead for programs of this machine, which come again then.
    let serves = |seconds: u32, server: &str| {
        format!(
            "for try in 1 2 3 4; do timeout {seconds} {} verbs --device window:{} -- {server} && break; \
             [ $try -lt 4 ] || echo failed: {server}; done; ",
            sluice.display(),
            window.display()
        )
    };
    const LOST: &str = r"status 12\|transport retry counter exceeded";
    let mut outside = String::new();
    let mut inside = format!(
        "load\n{LOAD}\nip link set lo up\nnet=$(basename /sys/bus/virtio/drivers/virtio_net/*/net/*)\n\
         ip link set $net up\nip addr add 10.0.2.15/24 dev $net\n"
    );
    for (number, program) in OUTSIDE.iter().enumerate() {
        let port = 18_600 + number;
        outside += &serves(60, &format!("{program} -p {port}"));
        // It begins when the one before has ended, and is waited for.
        inside += &format!(
            "for try in $(seq 200); do\n\
             if {program} -p {port} 10.0.2.2 >/run/said 2>&1; then echo \"well: {program}\"; break; fi\n\
             grep -q \"Couldn't connect\\|{LOST}\" /run/said || {{ cat /run/said; exit 1; }}\nsleep 0.5\ndone\n"
        );
    }
    outside += "ip addr add 10.9.0.2/32 dev lo; ";
    inside += "sluice=$(basename /sys/class/infiniband/sluice0/device/net/*)\n\
               ip addr add 10.9.0.1/24 dev $sluice\nip link set $sluice up\n\
               until grep -qs ffff:0a09:0001 /sys/class/infiniband/sluice0/ports/2/gids/*; do sleep 0.1; done\n";
    for (server, client) in OUTSIDE_CM {
        outside += &serves(90, server);
        inside += &format!(
            "for try in $(seq 40); do\n\
             if timeout 60 {client} >/run/said 2>&1; then \
             echo \"well: {client}\"; break; fi\nsleep 0.5\ndone\n\
             [ $try -lt 40 ] || {{ cat /run/said; exit 1; }}\n"
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
    let addressed = OUTSIDE_CM.map(|(_, client)| client);
    for program in OUTSIDE.into_iter().chain(addressed) {
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
    let server = serve(place.path())?;
    let mut far = FarEnd::new(&server.socket)?;
    let script = format!(
        "load\n{LOAD}\n$VICTIM sluice0 {}\nrmmod sluice_rdma\nrmmod sluice_window\nnothing_left\n",
        far.slot()
    );
    let device = Some((&server, 1));
    let guest = boot(place.path(), device, "bookworm-backports", &script, None)?;
    let console = run_beside(guest, &mut far, FarEnd::step, FarEnd::describe)?;
    sure(
        console.contains("victim=ok"),
        format!("{}\n{console}", far.describe()),
    )?;
    sure(far.is_through(), far.describe())
}

/// Runs the guest to its end beside a host of the window that is not in it, and that takes steps by what the guest has
/// said. Returns all of that.
pub fn run_beside<T>(
    mut guest: Guest,
    host: &mut T,
    mut step: impl FnMut(&mut T, &str) -> Verdict,
    describe: impl Fn(&T) -> String,
) -> Verdict<String> {
    let ran = guest.run(|machine| {
        step(host, &machine.console())?;
        Ok(false)
    });
    ran.map_err(|problem| problem.with(|| describe(host)))?;
    guest.finish()
}

fn verbs(suite: &'static str, script: &str, says: &[&str]) -> Verdict {
    verbs_beside(&[], suite, script, says)
}

/// With more of the kernel's own modules.
pub fn verbs_beside(
    modules: &[&'static str],
    suite: &'static str,
    script: &str,
    says: &[&str],
) -> Verdict {
    let place = tempfile::tempdir()?;
    let server = serve(place.path())?;
    let devices = Some((&server, 2));
    let extra = Extra {
        modules: modules.to_vec(),
        ..Extra::default()
    };
    let mut guest = boot_with(place.path(), devices, suite, script, extra)?;
    guest.run(|_| Ok(false))?;
    let console = guest.finish()?;
    for word in says {
        sure(console.contains(word), format!("no {word}\n{console}"))?;
    }
    Ok(())
}

/// With two devices, the modules and programs for them.
pub fn boot(
    place: &Path,
    server: Option<(&Server, u32)>,
    suite: &'static str,
    script: &str,
    outside: Option<Outside>,
) -> Verdict<Guest> {
    let extra = Extra {
        outside,
        ..Extra::default()
    };
    boot_with(place, server, suite, script, extra)
}

/// And with more of what a guest can have.
pub fn boot_with(
    place: &Path,
    server: Option<(&Server, u32)>,
    suite: &'static str,
    script: &str,
    extra: Extra,
) -> Verdict<Guest> {
    let kernel = Kernel::find(suite)?;
    let rdma = kernel_folder().join("rdma");
    let include = format!("-I{}", kernel_folder().join("include").display());
    let program = |name: &str| {
        let source = rdma.join(format!("test/{name}.c"));
        let options = ["-O2", &include, "-Wl,--no-as-needed", "-libverbs"];
        module::program(place, name, &[source], &options)
    };
    let provider = window::provider(place)?;
    let made = build::rdma(&kernel)?;
    let extra = Extra {
        modules: [&["rdma_ucm", "virtio_net"], &extra.modules[..]].concat(),
        driver: Some(made.driver),
        prelude: format!(
            "RDMA={}\nTEST={}\nVERBS={}\nSERVICES={}\nVICTIM={}\nUNREADY={}\nSTRANGER={}\nKILLS_PROGRAM={}\nQUEUES={}\nWINDOWS={}\nEXTENDED_PROGRAM={}\nSMC={}\nPROVIDER={}\n{PRELUDE}",
            made.rdma.display(),
            made.test.display(),
            program("verbs")?.display(),
            program("services")?.display(),
            program("victim")?.display(),
            program("unready")?.display(),
            program("stranger")?.display(),
            program("kills")?.display(),
            program("queues")?.display(),
            program("windows")?.display(),
            program("extended")?.display(),
            program("smc")?.display(),
            provider.display()
        ),
        ..extra
    };
    Guest::boot(&kernel, server, extra, script)
}
