//! Many queues, and rings of every kind of length.

use libtest_mimic::Trial;

use sluice_tests::nic::{self, Settings};
use sluice_tests::suite::{Verdict, trial};

use crate::driver::{TRACE_POOLS, no_page_left};

pub fn trials() -> Vec<Trial> {
    vec![trial("eight_queues_and_ring_sizes", eight)]
}

/// The hash spreads flows over eight queues, over fewer when told to, and sends from each; rings are as
/// short and as long as the card has them, with lengths of their own for each direction.
fn eight() -> Verdict {
    let settings = Settings {
        processors: 1,
        ports: &["gen:64,128,0", "open"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        # Where flows go follows from the key.
        ethtool -X nic0 hkey $(seq -s: -f %02g 10 49)
        ethtool -L nic0 combined 8
        echo channels=$(ethtool -l nic0 | awk '/Current/ {{ now = 1 }} now && /^Combined:/ {{ print $2 }}')
        ethtool -L nic0 combined 17 2>/dev/null || echo too_many=refused
        rx() {{ ethtool -S nic0 | sed -n 's/^ *rx[0-9]*_packets: //p'; }}
        sent() {{ ethtool -S nic0 | sed -n 's/^ *xdp_tx[0-9]*_packets: //p'; }}
        # grow COUNTERS WANTED: waits until exactly these queues grow, as 11110000.
        grow() {{
            local tries=0 was now
            while :; do
                was=$($1)
                sleep 0.1
                now=$(echo $was $($1) | awk '{{ for (i = 1; i <= NF / 2; i++) printf "%d", ($(i + NF / 2) > $i) }}')
                [ "$now" != $2 ] || return 0
                tries=$((tries + 1))
                [ $tries -lt 100 ] || {{ echo "$1 grows in $now and not in $2"; return 1; }}
            done
        }}
        up nic0
        grow rx 11111111 && echo all=1
        $XDP verdict nic0 tx 600000 &
        program=$!
        grow sent 11111111 && echo all_send=1
        kill $program
        wait $program 2>/dev/null || :
        ethtool -X nic0 equal 4
        grow rx 11110000 && echo four=1
        ethtool -L nic0 combined 2 2>/dev/null || echo in_use=refused
        ethtool -X nic0 default
        ethtool -L nic0 combined 1
        up nic0
        $XDP verdict nic0 tx 600000 &
        program=$!
        for rings in "64 128" "192 16384" "16384 64"; do
            set -- $rings
            ethtool -G nic0 rx $1 tx $2
            up nic0
            grow sent 1
            [ "$(ethtool -g nic0 | awk '/Current/ {{ now = 1 }} now && /^[RT]X:/ {{ print $2 }}' | xargs)" = "$rings" ] &&
                echo rings_$1_$2=1
        done
        kill $program
        wait $program 2>/dev/null || :
        for name in bad too_long alloc_failed; do echo $name=$(stat nic0 $name); done
        echo card_errors=$(ethtool -S nic0 | sed -n 's/.*card_errors: //p')
        rmmod opennic
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for (name, value) in [
        ("channels", "8"),
        ("too_many", "refused"),
        ("all", "1"),
        ("all_send", "1"),
        ("four", "1"),
        ("in_use", "refused"),
        ("rings_64_128", "1"),
        ("rings_192_16384", "1"),
        ("rings_16384_64", "1"),
        ("bad", "0"),
        ("too_long", "0"),
        ("alloc_failed", "0"),
        ("card_errors", "0"),
    ] {
        report.check(report.value(name) == Some(value), name)?;
    }
    no_page_left(&report)
}
