//! Beside two other devices that are wired to one another, virtio's or Intel's: frames are redirected to one and from the
//! other, and Sluice reads and writes their memory itself, on a kernel that lets it.

use libtest_mimic::Trial;

use sluice_tests::lab::find_sluice;
use sluice_tests::nic::{self, Kernel, Report, Settings};
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::Own;

use crate::driver::{TRACE_POOLS, no_page_left};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("redirect_and_sluice_over_virtio_7_3", virtio),
        trial("sluice_over_igb_7_3", igb),
    ]
}

/// Without the device's access by the platform's means its memory cannot be lent (`virtnet_xsk_pool_enable`);
/// what is left out besides a device may not have while it has a program.
macro_rules! device {
    ($name:literal) => {
        concat!(
            "virtio-net-pci,netdev=v",
            $name,
            ",mac=02:00:00:00:01:0",
            $name,
            ",disable-legacy=on,iommu_platform=on,guest_tso4=off,guest_tso6=off",
            ",guest_ecn=off,guest_ufo=off,guest_csum=off,guest_uso4=off,guest_uso6=off",
        )
    };
}

/// Devices that are wired to one another, and verbs of Sluice from the first to the second one.
const SLUICE_OVER: &str = r#"
# wired PATH...: names devices by their addresses.
wired() {
    local path
    for path in "$@"; do
        case $(cat $path/address) in
        02:00:00:00:01:01) ip link set ${path##*/} name there ;;
        02:00:00:00:01:02) ip link set ${path##*/} name here ;;
        esac
    done
}
over() {
    ip netns add far
    ip link set $2 netns far
    ip addr add 10.9.0.1/24 dev $1
    ip netns exec far ip addr add 10.9.0.2/24 dev $2
    ip netns exec far ip link set lo up
    ip link set lo up
    ip netns exec far ip link set $2 up
    up $1
    doctor=$($SLUICE doctor --interface $1) || :
    case $doctor in *zero-copy:*) echo doctor=zero-copy ;; *) echo "$doctor" ;; esac
    case $doctor in *"its link went away"*) echo link=lost ;; *) echo link=stays ;; esac
    up $1
    mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || :
    echo >/sys/kernel/tracing/trace
    echo 1 >/sys/kernel/tracing/events/xdp/xdp_redirect/enable
    ip netns exec far $SLUICE verbs --device roce -- $TRAFFIC -p 18515 -n 200 -b 20000 -T 18 >/tmp/server 2>&1 &
    server=$!
    tries=0
    until [ -n "$(ip netns exec far ss -Hltn "sport = :18515")" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat /tmp/server; exit 1; }
        sleep 0.2
    done
    $SLUICE verbs --device roce -- $TRAFFIC -p 18515 -n 200 -b 20000 -T 18 10.9.0.2 >/tmp/client 2>&1 || { cat /tmp/client /tmp/server; exit 1; }
    wait $server && echo traffic=1
    echo given=$(grep -c 'xdp_redirect: .* err=0' /sys/kernel/tracing/trace || :)
}
"#;

fn virtio() -> Verdict {
    let place = tempfile::tempdir()?;
    let traffic = Own::Traffic.compile(place.path())?;
    let settings = Settings {
        kernel: Kernel::New,
        in_turn: true,
        // As many frames as are to be redirected, and then no more.
        ports: &["gen:256,4,4000", "open"],
        devices: &[
            "-netdev",
            "hubport,id=v1,hubid=0",
            "-netdev",
            "hubport,id=v2,hubid=0",
            "-device",
            device!("1"),
            "-device",
            device!("2"),
        ],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        {SLUICE_OVER}
        SLUICE={} TRAFFIC={}
        nics
        wired /sys/bus/virtio/drivers/virtio_net/*/net/*
        for name in there here nic1; do ip link set $name up; done
        # What is redirected has the addresses that it came with.
        ip link set here promisc on
        up nic1
        # Of virtio, the one that sends wants a program itself.
        $XDP verdict there pass 600000 &
        programs=$!
        $XDP verdict here redirect:nic1 600000 &
        programs="$programs $!"
        $XDP verdict nic0 redirect:there 600000 &
        programs="$programs $!"
        tries=0
        until [ $(ip link | grep -c prog/xdp) = 3 ]; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || {{ ip link; exit 1; }}
            sleep 0.2
        done
        was=$(stat nic1 packets)
        up nic0
        until [ $(stat nic1 packets) -gt $((was + 100)) ]; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || {{ echo "nothing comes"; ethtool -S nic0; ethtool -S here; exit 1; }}
            sleep 0.2
        done
        echo redirected=$(stat nic0 xdp_redirect)
        ip link set nic0 down
        kill $programs
        wait $programs 2>/dev/null || :
        rmmod opennic
        pools

        over there here
        "#,
        find_sluice()?.display(),
        traffic.display(),
    );
    let report = nic::run(settings, &script)?;
    report.check(report.number("redirected")? > 100, "nothing was redirected")?;
    report.check(report.number("port1_tx")? > 100, "nothing left the card")?;
    went_over(&report, "stays")?;
    no_page_left(&report)
}

/// What [`SLUICE_OVER`] has said. `link`: what becomes of it when a program is attached.
fn went_over(report: &Report, link: &str) -> Verdict {
    report.check(
        report.value("doctor") == Some("zero-copy"),
        "doctor does not call it zero-copy",
    )?;
    report.check(
        report.value("traffic") == Some("1"),
        "not all requests came",
    )?;
    report.check(
        report.value("link") == Some(link),
        "the link while a program is attached",
    )?;
    report.check(report.number("given")? > 100, "AF_XDP got no packets")
}

/// Two of Intel's cards, as QEMU has them, with the kernel's own driver: its receive buffers are of whole
/// KiB, and it starts the card anew for a program, which takes the link down.
fn igb() -> Verdict {
    let place = tempfile::tempdir()?;
    let traffic = Own::Traffic.compile(place.path())?;
    let settings = Settings {
        kernel: Kernel::New,
        in_turn: true,
        devices: &[
            "-netdev",
            "hubport,id=v1,hubid=0",
            "-netdev",
            "hubport,id=v2,hubid=0",
            "-device",
            "igb,addr=0x8,netdev=v1,mac=02:00:00:00:01:01",
            "-device",
            "igb,addr=0xc,netdev=v2,mac=02:00:00:00:01:02",
        ],
        modules: &["igb"],
        ..Settings::default()
    };
    let script = format!(
        r#"{SLUICE_OVER}
        SLUICE={} TRAFFIC={}
        wired /sys/bus/pci/drivers/igb/0000*/net/*
        over there here
        "#,
        find_sluice()?.display(),
        traffic.display(),
    );
    let report = nic::run(settings, &script)?;
    went_over(&report, "lost")
}
