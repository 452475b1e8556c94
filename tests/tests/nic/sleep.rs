//! Sleep under load.

use libtest_mimic::Trial;

use sluice_tests::nic::{self, Settings};
use sluice_tests::suite::{Verdict, trial};

pub fn trials() -> Vec<Trial> {
    vec![trial("sleep_under_load", sleep)]
}

/// Every device is suspended and resumed, on the way to both kinds of sleep, while packets come for an
/// AF_XDP socket without a copy and for the stack. It goes no further: the guest's processor and
/// firmware are not what is tried.
fn sleep() -> Verdict {
    let settings = Settings {
        ports: &["gen:64,16,0", "open"],
        ..Settings::default()
    };
    let script = r#"
        nics
        ip link set nic0 address 02:00:00:00:00:01
        # Flows go to both queues, one of which is the socket's.
        ethtool -X nic0 hkey $(seq -s: -f %02g 10 49)
        # The channel to the host's files does not outlive sleep: what is used then lies in memory.
        memory=/dev/shm/root
        mkdir -p $memory/proc $memory/sys $memory/dev $memory/usr/bin
        for name in bin sbin lib lib64; do ln -s usr/$name $memory/$name; mkdir -p $memory/usr/$name; done
        for program in sh cat sleep ip ethtool sed awk dmesg rmmod seq; do
            file=$(command -v $program)
            cp -L $file $memory/usr/bin/$program
            for library in $(ldd $file | sed -n 's/^\(.*=>\)\? *[[:space:]]*\(\/[^ ]*\) (.*/\2/p'); do
                mkdir -p $memory${library%/*}
                cp -L $library $memory$library
            done
        done
        cp $XDP $memory/usr/bin/xdp
        mount -t proc proc $memory/proc
        mount -t sysfs sys $memory/sys
        mount --bind /dev $memory/dev
        cat >$memory/script <<'END'
PATH=/usr/bin
ip link set nic0 up
taken() { ethtool -S nic0 | sed -n "s/^ *rx[0-9]*_$1: //p" | awk '{ s += $1 } END { print s + 0 }'; }
# more COUNTER THAN
more() {
    for try in $(seq 200); do
        [ $(taken $1) -le $2 ] || return 0
        sleep 0.2
    done
    echo "$1 stays at $2"
    return 1
}
# Sends as well as it receives.
xdp xsk nic0 0 zerocopy forward 1000000000 1000000 >/dev/null &
socket=$!
more xsk_packets 1000 && echo before=1
echo devices >/sys/power/pm_test
echo 1 >/sys/module/suspend/parameters/pm_test_delay
for state in freeze mem; do
    zero_copied=$(taken xsk_packets)
    echo $state >/sys/power/state && echo slept_$state=1
    more xsk_packets $((zero_copied + 1000)) && all=$(taken packets) && more packets $((all + 1000)) &&
        echo after_$state=1
done
[ -e /proc/$socket ] && echo same_socket=1
kill $socket
wait $socket
ip link set nic0 down
ip link set nic0 up
all=$(taken packets)
more packets $((all + 100)) && echo stack=1
rmmod opennic && echo removed=1
dmesg -l emerg,alert,crit,err,warn | sed 's/^/dmesg: /'
echo script_ended=1
echo o >/proc/sysrq-trigger
sleep 100
END
        chroot $memory /usr/bin/sh /script
        "#;
    let report = nic::run(settings, script)?;
    for name in [
        "before",
        "slept_freeze",
        "after_freeze",
        "slept_mem",
        "after_mem",
        "same_socket",
        "stack",
        "removed",
    ] {
        report.check(report.value(name) == Some("1"), name)?;
    }
    Ok(())
}
