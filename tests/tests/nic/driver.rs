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
        trial("af_xdp_without_buffers_6_12", || starved(Kernel::Usual)),
        trial("af_xdp_shared_memory", shared),
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
pub const TRACE_POOLS: &str = r#"
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || :
echo 1 >/sys/kernel/tracing/events/page_pool/page_pool_release/enable
counted_pools() {
    sed -n 's/.*page_pool=\([0-9a-fx]*\) inflight=\([-0-9]*\).*/\1 \2/p' /sys/kernel/tracing/trace |
        awk '{ last[$1] = $2 }
             END { for (pool in last) { count++; if (last[pool] != 0) left++ }
                   print "pools=" count + 0; print "pools_with_pages=" left + 0 }'
}
pools() {
    local tries=0
    sleep 2
    # The kernel looks at a pool with pages outside once a second, when it has a processor.
    until counted_pools | grep -qx pools_with_pages=0 || [ $tries -ge 60 ]; do
        tries=$((tries + 1))
        sleep 1
    done
    counted_pools
}
"#;

pub fn no_page_left(report: &Report) -> Verdict {
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
        serves
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
        # The limit of bytes under way begins at none, and what is sent is taken off again.
        limits() {{ cat /sys/class/net/nic0/queues/tx-*/byte_queue_limits/$1 | awk '{{ s += $1 }} END {{ print s }}'; }}
        idle() {{ [ $(limits inflight) = 0 ]; }}
        [ $(limits limit) -gt 0 ] && soon idle && echo byte_queue_limits=1
        # How often the threads of NAPI ran.
        runs() {{
            local name total=0 each
            for each in /proc/[0-9]*/comm; do
                read -r name <$each || continue
                case $name in napi/nic0-*) total=$((total + $(cut -d' ' -f3 ${{each%comm}}schedstat))) ;; esac
            done 2>/dev/null
            echo $total
        }}
        echo 1 >/sys/class/net/nic0/threaded
        before=$(runs)
        iperf3 -c 10.9.0.2 -t 1 -R >/dev/null
        [ $(runs) -gt $before ] && echo threaded=1
        echo 0 >/sys/class/net/nic0/threaded
        # Whoever waits for packets in poll(2) fetches them itself, when none is there.
        fetched() {{ awk '/^TcpExt:/ {{ if (named++) print $at; else for (i = 2; i <= NF; i++) if ($i == "BusyPollRxPackets") at = i }}' /proc/net/netstat; }}
        echo 500 >/proc/sys/net/core/busy_poll
        echo 500 >/proc/sys/net/core/busy_read
        polls() {{ iperf3 -c 10.9.0.2 -t 1 -R >/dev/null; [ $(fetched) -gt 0 ]; }}
        soon polls && echo busy_poll=1
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
    for name in ["byte_queue_limits", "threaded", "busy_poll"] {
        report.check(report.value(name) == Some("1"), name)?;
    }
    // On a loaded machine a packet may find no buffer, which the card says as an error, too.
    let dropped = report.number("port0_rx_dropped")? + report.number("port1_rx_dropped")?;
    report.check(
        report.number("card_errors")? == 0 || dropped > 0,
        "the card complained",
    )?;
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
        # Of kernels that count them.
        ethtool -S nic0 | sed -n 's/^ *rx_pp_alloc_slow: /pool_pages=/p; s/^ *rx_pp_alloc_fast: /pool_again=/p'
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
    if kernel == Kernel::New {
        report.check(report.number("pool_pages")? > 0, "no page was counted")?;
        report.check(report.number("pool_again")? > 100, "no page came back")?;
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
        for name in left right nic1; do ip link set $name up; done
        up nic1
        # arrive DEVICE PEER: what nic0 redirects to DEVICE comes to PEER, and from there goes out of the card.
        arrive() {{
            # A program on a veth makes its peer take frames. Programs come and go while nothing does,
            # which leaves the guest time for them.
            $XDP verdict $2 redirect:nic1 600000 &
            local peer=$! tries=0
            $XDP verdict nic0 redirect:$1 600000 &
            local first=$! was=$(stat nic1 packets)
            until ip link show $2 | grep -q prog/xdp && ip link show nic0 | grep -q prog/xdp; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || {{ echo "no programs for $1"; return 1; }}
                sleep 0.2
            done
            up nic0
            until [ $(stat nic1 packets) -gt $((was + 100)) ]; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || {{ echo "nothing comes through $1"; ethtool -S nic0; return 1; }}
                sleep 0.2
            done
            ip link set nic0 down
            kill $first $peer
            wait $first $peer 2>/dev/null || :
            echo through_$1=1
        }}
        arrive left right
        echo redirected=$(stat nic0 xdp_redirect)
        rmmod opennic
        ip link del left
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    report.check(report.number("redirected")? > 100, "nothing was redirected")?;
    report.check(
        report.value("through_left") == Some("1"),
        "nothing came through the veth",
    )?;
    report.check(report.number("port1_tx")? > 100, "nothing left the card")?;
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
                $XDP xsk nic0 0 $mode $job 5000 90000 && echo $job-$mode=1
            done
        done
        # What floods the stack leaves the one processor no time for what else there is to do.
        ip link set nic0 down
        for mode in zerocopy copy; do
            $XDP xsk nic1 0 $mode send 5000 90000 && echo send-$mode=1
        done
        echo zero_copied=$(stat nic0 xsk_packets)
        echo zero_copied_out=$(stat nic1 xsk_packets)
        $XDP xsk nic1 7 zerocopy drop 1 100 2>/dev/null || echo no_queue=refused
        # Without buffers for it the device is the stack's again.
        up nic0
        gets nic0 packets $(stat nic0 packets) && echo stack_again=1
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

/// A program that keeps all buffers gets packets again when it gives them back: whether it calls
/// when it is told to, or was never to be told and only looks at its rings.
fn starved(kernel: Kernel) -> Verdict {
    let settings = Settings {
        kernel,
        ports: &["gen:64,1,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        # The packets are of one flow, which one queue gets.
        ethtool -L nic0 combined 1
        up nic0
        up nic1
        $XDP flags nic1 0 90000 && echo flags=1
        for way in told untold; do
            $XDP starve nic0 0 $way 20000 90000 && echo $way=1
        done
        # Its socket goes while the function is reset, and while the device is down.
        $XDP xsk nic0 0 zerocopy drop 1000000000 100000 >/dev/null &
        program=$!
        sleep 1
        for round in 1 2 3 4 5; do echo 1 >/sys/bus/pci/devices/0000:00:05.0/reset; done &
        sleep 0.05
        kill -9 $program
        wait $! $program 2>/dev/null || :
        $XDP xsk nic0 0 zerocopy drop 1000000000 100000 >/dev/null &
        program=$!
        sleep 1
        ip link set nic0 down
        kill -9 $program
        wait $program 2>/dev/null || :
        up nic0
        $XDP xsk nic0 0 zerocopy drop 5000 90000 && echo again=1
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for (name, wrong) in [
        ("flags", "told to call when it should not, or not told"),
        ("told", "no packets for a program that called"),
        ("untold", "no packets for a program that only looks"),
        ("again", "no packets after a socket went during a reset"),
    ] {
        report.check(report.value(name) == Some("1"), wrong)?;
    }
    no_page_left(&report)
}

/// A socket that sends comes to the memory of one that only receives, while that one's channel is kept
/// looking: the pool has no place for what is sent until then.
fn shared() -> Verdict {
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        up nic0
        up nic1
        $XDP share nic0 0 20 && echo shared=1
        echo zero_copied_out=$(ethtool -S nic0 | sed -n 's/^ *xdp_tx0_xsk_packets: //p')
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(Settings::default(), &script)?;
    report.check(report.value("shared") == Some("1"), "not all was sent")?;
    report.check(
        report.number("zero_copied_out")? == 20 * 64,
        "what was sent without a copy",
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
        queue() {{ ethtool -S nic0 | sed -n "s/^ *rx$1_packets: //p"; }}
        # What came before the table is read by and by.
        for round in $(seq 60); do
            before=$(queue 1) enough=$(($(queue 0) + 100)) tries=0
            until [ $(queue 0) -gt $enough ] || [ $tries -ge 100 ]; do tries=$((tries + 1)); sleep 0.1; done
            if [ $(queue 0) -gt $enough ] && [ $before = $(queue 1) ]; then echo table=1; break; fi
        done
        ethtool -X nic0 default
        key=$(seq -s: -f %02g 10 49)
        ethtool -X nic0 hkey $key && ethtool -x nic0 | grep -q $key && echo key=1
        ethtool -C nic0 rx-usecs 60 rx-frames 20
        echo usecs=$(ethtool -c nic0 | sed -n 's/^rx-usecs:[[:space:]]*//p')
        ethtool -C nic0 rx-usecs 5000 2>/dev/null || echo long=refused
        for mtu in 3400 68 1500; do
            ip link set nic0 mtu $mtu
            gets nic0 packets $(stat nic0 packets) && echo mtu_$mtu=1
        done
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
        ("mtu_3400", "1"),
        ("mtu_68", "1"),
        ("mtu_1500", "1"),
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
        ip netns exec far iperf3 -s -D >/dev/null
        serves
        iperf3 -c 10.9.0.2 -t 5 -J >/tmp/there
        echo there=$(jq '.end.sum_received.bytes' /tmp/there)
        # One in fifty is bad, by chance, and few packets may have come.
        for more in $(seq 30); do
            [ $(stat nic0 bad) -gt 0 ] && break
            # The link may be down just then.
            iperf3 -c 10.9.0.2 -t 1 >/dev/null 2>&1 || :
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
        gets nic0 packets 0
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
        gets nic0 packets $(stat nic0 packets) && echo after_reset=1
        rmmod opennic
        wait $! || :
        nics
        up nic0
        gets nic0 packets 0
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
