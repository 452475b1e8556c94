//! Each trial boots a guest for one script.

use std::process::Command;

use libtest_mimic::Trial;

use sluice_tests::nic::{self, Kernel, Report, Settings};
use sluice_tests::suite::{Verdict, fail, skip, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("ring_arithmetic_beside_a_queue_that_counts", rings),
        trial("builds_without_a_warning_on_6_1", || {
            builds(Kernel::Old, &[])
        }),
        trial("builds_without_a_warning_on_7_3", || {
            builds(Kernel::New, &[])
        }),
        trial("builds_with_fixed_buffers", || {
            builds(Kernel::Usual, &["ONIC_FIXED_BUFFERS=1"])
        }),
        trial("stack_6_12", || stack(Kernel::Usual)),
        trial("stack_6_1", || stack(Kernel::Old)),
        trial("xdp_verdicts_and_no_page_left_6_12", || {
            verdicts(Kernel::Usual, &[])
        }),
        trial("xdp_verdicts_and_no_page_left_7_3", || {
            verdicts(Kernel::New, &[])
        }),
        trial("xdp_verdicts_with_fixed_buffers", || {
            verdicts(Kernel::Usual, &["ONIC_FIXED_BUFFERS=1"])
        }),
        trial("xdp_redirect_between_devices", redirect),
        trial("af_xdp_zero_copy_6_12", || xsk(Kernel::Usual)),
        trial("af_xdp_zero_copy_7_3", || xsk(Kernel::New)),
        trial("settings_change_under_load", settings),
        trial("faults_of_the_card", faults),
        trial("removal_and_reset_under_load", removal),
    ]
}

/// The driver's ring arithmetic in user space.
fn rings() -> Verdict {
    let place = tempfile::tempdir()?;
    let program = place.path().join("ring_test");
    let made = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"])
        .arg("-o")
        .arg(&program)
        .arg(nic::driver_source().join("test/ring_test.c"))
        .output();
    let made = match made {
        Ok(made) => made,
        Err(_) => return skip("gcc is not installed; run scripts/setup test"),
    };
    if !made.status.success() {
        return fail(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    let ran = Command::new(program).output()?;
    if ran.status.success() && ran.stdout == b"ok\n" && ran.stderr.is_empty() {
        return Ok(());
    }
    fail(String::from_utf8_lossy(&ran.stderr).into_owned())
}

fn builds(kernel: Kernel, build: &[&str]) -> Verdict {
    let settings = Settings {
        kernel,
        build,
        ..Settings::default()
    };
    nic::build_driver(&settings).map(|_| ())
}

/// Traces the pools from their making to the release of their last page; `pools` prints how many
/// there were, and how many of them have a page outside still.
const TRACE_POOLS: &str = r#"
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || :
echo 1 >/sys/kernel/tracing/events/page_pool/page_pool_release/enable
pools() {
    sleep 2
    sed -n 's/.*page_pool=\([0-9a-fx]*\) inflight=\([-0-9]*\).*/\1 \2/p' /sys/kernel/tracing/trace |
        awk '{ last[$1] = $2 }
             END { for (pool in last) { count++; if (last[pool] != 0) left++ }
                   print "pools=" count + 0; print "pools_with_pages=" left + 0 }'
}
"#;

fn no_page_left(report: &Report) -> Verdict {
    report.check(report.number("pools")? > 0, "no pool was seen to end")?;
    report.check(
        report.number("pools_with_pages")? == 0,
        "pages are left outside",
    )
}

/// TCP both ways between two functions, small and long packets, and the card's own test.
fn stack(kernel: Kernel) -> Verdict {
    let settings = Settings {
        kernel,
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        both
        ip netns exec far iperf3 -s -D >/dev/null
        sleep 1
        iperf3 -c 10.9.0.2 -t 2 -J >/tmp/there
        ip link set nic0 mtu 3400
        ip netns exec far ip link set nic1 mtu 3400
        iperf3 -c 10.9.0.2 -t 2 -R -J >/tmp/back || cat /tmp/back
        echo there=$(jq '.end.sum_received.bytes' /tmp/there)
        echo back=$(jq '.end.sum_received.bytes' /tmp/back)
        ethtool -t nic0 && echo self_test=passed
        echo bad=$(stat nic0 bad) missed=$(stat nic0 missed_irq)
        echo card_errors=$(ethtool -S nic0 | sed -n 's/.*card_errors: //p')
        ip link set nic0 mtu 3600 2>/dev/null || echo mtu=refused
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    report.check(report.number("there")? > 100_000, "no bytes went there")?;
    report.check(report.number("back")? > 100_000, "no bytes came back")?;
    report.check(report.value("self_test") == Some("passed"), "ethtool -t")?;
    report.check(
        report.value("mtu") == Some("refused"),
        "an MTU over a buffer",
    )?;
    report.check(report.number("card_errors")? == 0, "the card complained")?;
    report.check(report.number("bad")? == 0, "bad packets")?;
    // One may be so late on a loaded machine that it looks lost; they were not asked for when there
    // are many.
    report.check(report.number("missed")? < 3, "interrupts did not come")?;
    no_page_left(&report)
}

/// Every verdict counts what it does, a change of programs stops nothing, and nothing leaks.
fn verdicts(kernel: Kernel, build: &[&str]) -> Verdict {
    let settings = Settings {
        in_turn: true,
        kernel,
        build,
        // Many flows over two queues, as fast as the guest takes them. Where they go follows from the
        // hash's key: a random one may send all of them to one.
        ports: &["gen:64,64,0", "open"],
        ..Settings::default()
    };
    let trace = if build.is_empty() { TRACE_POOLS } else { "" };
    let pools = if build.is_empty() { "pools" } else { "" };
    let script = format!(
        r#"{trace}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        ip link set nic1 up
        $XDP verdict nic1 pass 10 && echo attached_before_traffic=1
        ethtool -X nic0 hkey $(seq -s: -f %02g 10 49)
        up nic0
        for verdict in drop pass tx abort bad redirect:nic1; do
            $XDP verdict nic0 $verdict 700
        done
        $XDP swap nic0 drop tx 50
        for name in xdp_drop xdp_pass xdp_tx xdp_aborted xdp_redirect alloc_failed too_long bad; do
            echo $name=$(stat nic0 $name)
        done
        echo packets=$(stat nic0 packets)
        echo queue0=$(ethtool -S nic0 | sed -n 's/^ *rx0_packets: //p')
        echo queue1=$(ethtool -S nic0 | sed -n 's/^ *rx1_packets: //p')
        echo card_errors=$(ethtool -S nic0 | sed -n 's/.*card_errors: //p')
        # Sent out of nic0 by XDP_TX.
        ethtool -S nic0 | grep xdp_tx
        rmmod opennic
        {pools}
        "#
    );
    let report = nic::run(settings, &script)?;
    for name in [
        "xdp_drop",
        "xdp_pass",
        "xdp_tx",
        "xdp_aborted",
        "xdp_redirect",
    ] {
        report.check(report.number(name)? > 100, name)?;
    }
    for name in ["alloc_failed", "too_long", "bad", "card_errors"] {
        report.check(report.number(name)? == 0, name)?;
    }
    for queue in ["queue0", "queue1"] {
        report.check(report.number(queue)? > 100, "a queue without packets")?;
    }
    report.check(report.number("port0_tx")? > 100, "XDP_TX sent nothing")?;
    report.check(
        report.number("port1_tx")? > 100,
        "XDP_REDIRECT sent nothing",
    )?;
    report.check(
        report.number("port0_rx_dropped")? == 0,
        "packets without a buffer",
    )?;
    if build.is_empty() {
        no_page_left(&report)?;
    }
    Ok(())
}

/// To a veth and from one, and both at once.
fn redirect() -> Verdict {
    let settings = Settings {
        in_turn: true,
        ports: &["gen:256,4,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        ip link add left type veth peer name right
        ip link set left up
        ip link set right up
        ip link set nic1 up
        up nic0
        up nic1
        # A program on the peer makes a veth take frames; from there they go out of the card.
        $XDP verdict right redirect:nic1 4000 &
        peer=$!
        sleep 0.5
        $XDP verdict nic0 redirect:left 2000
        wait $peer
        echo redirected=$(stat nic0 xdp_redirect)
        rmmod opennic
        ip link del left
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    report.check(report.number("redirected")? > 100, "nothing was redirected")?;
    report.check(
        report.number("port1_tx")? > 100,
        "nothing came through the veth",
    )?;
    no_page_left(&report)
}

/// Receiving, sending back and sending without a copy; beside it copy mode; and traffic of the
/// stack on the same device.
fn xsk(kernel: Kernel) -> Verdict {
    let settings = Settings {
        kernel,
        processors: 1,
        ports: &["gen:64,1,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        ip link set nic1 up
        up nic0
        up nic1
        for job in drop forward; do
            for mode in zerocopy copy; do
                $XDP xsk nic0 0 $mode $job 5000 20000 && echo $job-$mode=1
            done
        done
        # What floods the stack leaves the one processor no time for what else there is to do.
        ip link set nic0 down
        for mode in zerocopy copy; do
            $XDP xsk nic1 0 $mode send 5000 20000 && echo send-$mode=1
        done
        echo zero_copied=$(stat nic0 xsk_packets)
        echo zero_copied_out=$(stat nic1 xsk_packets)
        $XDP xsk nic1 7 zerocopy drop 1 100 2>/dev/null || echo no_queue=refused
        # Without buffers for it the device is the stack's again.
        up nic0
        before=$(stat nic0 packets)
        sleep 1
        [ $(stat nic0 packets) -gt $before ] && echo stack_again=1
        # Bound while the device goes away.
        $XDP xsk nic0 0 zerocopy drop 1000000000 4000 >/dev/null &
        sleep 1
        rmmod opennic
        wait $! || :
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for job in ["drop", "forward", "send"] {
        for mode in ["zerocopy", "copy"] {
            let name = format!("{job}-{mode}");
            report.check(report.value(&name) == Some("1"), &name)?;
        }
    }
    report.check(report.number("zero_copied")? >= 10_000, "zero copy in")?;
    report.check(report.number("zero_copied_out")? >= 5_000, "zero copy out")?;
    report.check(
        report.value("no_queue") == Some("refused"),
        "a queue that is not there",
    )?;
    report.check(
        report.value("stack_again") == Some("1"),
        "the stack's queue afterwards",
    )?;
    no_page_left(&report)
}

/// Rings, channels, the hash and coalescing change while packets come.
fn settings() -> Verdict {
    let settings = Settings {
        ports: &["gen:128,16,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        up nic0
        ethtool -G nic0 rx 256 tx 256
        echo ring=$(ethtool -g nic0 | awk '/Current/ {{ now = 1 }} now && /^RX:/ {{ print $2 }}')
        ethtool -G nic0 rx 100 tx 100 2>/dev/null || echo odd_ring=refused
        ethtool -L nic0 combined 1
        up nic0
        sleep 0.5
        echo one_queue=$(ethtool -S nic0 | grep -c ' rx[0-9][0-9]*_packets')
        ethtool -L nic0 combined 2
        up nic0
        ethtool -X nic0 weight 1 0
        sleep 0.5
        before=$(ethtool -S nic0 | sed -n 's/^ *rx1_packets: //p')
        sleep 0.5
        after=$(ethtool -S nic0 | sed -n 's/^ *rx1_packets: //p')
        [ $before = $after ] && echo table=1
        ethtool -X nic0 default
        key=$(seq -s: -f %02g 10 49)
        ethtool -X nic0 hkey $key && ethtool -x nic0 | grep -q $key && echo key=1
        ethtool -C nic0 rx-usecs 60 rx-frames 20
        echo usecs=$(ethtool -c nic0 | sed -n 's/^rx-usecs:[[:space:]]*//p')
        ethtool -C nic0 rx-usecs 5000 2>/dev/null || echo long=refused
        packets=$(stat nic0 packets)
        sleep 0.5
        [ $(stat nic0 packets) -gt $packets ] && echo alive=1
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for (name, value) in [
        ("ring", "256"),
        ("odd_ring", "refused"),
        ("one_queue", "1"),
        ("table", "1"),
        ("key", "1"),
        ("usecs", "75"),
        ("long", "refused"),
        ("alive", "1"),
    ] {
        report.check(report.value(name) == Some(value), name)?;
    }
    no_page_left(&report)
}

/// Bad packets are counted, lost interrupts and late completions survived, and a link that flaps
/// comes back.
fn faults() -> Verdict {
    let settings = Settings {
        faults: &[
            "--bad-completion",
            "50",
            "--lost-interrupt",
            "20",
            "--late-completion",
            "20",
        ],
        ..Settings::default()
    };
    let script = r#"
        nics
        both
        ip netns exec far iperf3 -s -D -1 >/dev/null
        sleep 1
        iperf3 -c 10.9.0.2 -t 5 -J >/tmp/there
        echo there=$(jq '.end.sum_received.bytes' /tmp/there)
        # One in fifty is bad, by chance, and few packets may have come.
        for more in $(seq 30); do
            [ $(stat nic0 bad) -gt 0 ] && break
            iperf3 -c 10.9.0.2 -t 1 >/dev/null
        done
        echo bad=$(stat nic0 bad) missed=$(stat nic0 missed_irq)
        echo changes=$(cat /sys/class/net/nic0/carrier_changes)
        rmmod opennic
        "#;
    let mut step = 0;
    let report = nic::run_with(settings, script, |model| {
        // The link is down for half a second, now and then.
        step += 1;
        match step % 30 {
            0 => model("link 0 down").map(|_| ()),
            5 => model("link 0 up").map(|_| ()),
            _ => Ok(()),
        }
    })?;
    report.check(report.number("there")? > 50_000, "TCP did not get through")?;
    report.check(report.number("bad")? > 0, "no bad packet was counted")?;
    report.check(
        report.number("interrupts_lost")? > 0,
        "no interrupt was lost",
    )?;
    report.check(report.number("changes")? > 2, "the link did not flap")
}

/// Down and up, a reset of the function, and the driver taken away and loaded, all under load.
fn removal() -> Verdict {
    let settings = Settings {
        ports: &["gen:64,8,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        up nic0
        # Counters go on where they were.
        sleep 0.5
        was=$(stat nic0 packets)
        ip link set nic0 down
        [ $was -gt 0 ] && [ $(stat nic0 packets) -ge $was ] && echo down=1
        up nic0
        [ $(stat nic0 packets) -ge $was ] && echo up=1
        for round in 1 2 3; do
            ip link set nic0 down
            up nic0
        done
        $XDP verdict nic0 tx 6000 &
        sleep 0.3
        echo 1 >/sys/bus/pci/devices/0000:00:05.0/reset
        up nic0
        before=$(stat nic0 packets)
        sleep 0.5
        [ $(stat nic0 packets) -gt $before ] && echo after_reset=1
        rmmod opennic
        wait $! || :
        nics
        up nic0
        sleep 0.3
        echo after_loading=$(stat nic0 packets)
        echo 0000:00:05.0 >/sys/bus/pci/drivers/opennic/unbind
        echo 0000:00:05.0 >/sys/bus/pci/drivers/opennic/bind
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for (name, wrong) in [
        ("down", "counters of a device that is down"),
        ("up", "counters of a device that was down"),
        ("after_reset", "no packets after the reset"),
    ] {
        report.check(report.value(name) == Some("1"), wrong)?;
    }
    report.check(
        report.number("after_loading")? > 0,
        "no packets after loading",
    )?;
    no_page_left(&report)
}
