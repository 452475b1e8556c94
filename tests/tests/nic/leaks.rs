//! Where memory and places lack: packets are lost, and no page.

use libtest_mimic::Trial;

use sluice_tests::nic::{self, Settings};
use sluice_tests::suite::{Verdict, trial};

use crate::driver::{TRACE_POOLS, no_page_left};

pub fn trials() -> Vec<Trial> {
    vec![trial("no_page_left_where_memory_and_places_lack", lacks)]
}

/// A driver that gets no memory each 61st time, and rings to send that are shorter than what comes at once:
/// for each verdict, for frames from elsewhere, for AF_XDP, and while the rings change.
fn lacks() -> Verdict {
    let settings = Settings {
        in_turn: true,
        ports: &["gen:64,16,0", "open"],
        build: &["ONIC_LACK=61"],
        ..Settings::default()
    };
    let script = format!(
        r#"{TRACE_POOLS}
        nics
        ip link set nic0 address 02:00:00:00:00:01
        ethtool -X nic0 hkey $(seq -s: -f %02g 10 49)
        ethtool -G nic0 tx 64
        ethtool -G nic1 tx 64
        up nic1
        # The sums of counters DEVICE COUNTER ..., and whether each is more than in the words before.
        counts() {{
            while [ $# -gt 0 ]; do stat $1 $2; shift 2; done | xargs
        }}
        more() {{ echo "$1 $2" | awk '{{ for (i = 1; i <= NF / 2; i++) if ($(i + NF / 2) <= $i) exit 1 }}'; }}
        # takes DEVICE COUNTER ...: packets come until each has grown. Under them the guest has little time, so it
        # looks while none come.
        takes() {{
            local tries=0 was=$(counts "$@")
            while :; do
                up nic0
                sleep 0.3
                ip link set nic0 down
                if more "$was" "$(counts "$@")"; then return 0; fi
                tries=$((tries + 1))
                [ $tries -lt 20 ] || {{ echo "not all of $* grow from $was"; ethtool -S nic0; return 1; }}
            done
        }}
        # with VERDICT DEVICE COUNTER ...
        with() {{
            local verdict=$1 tries=0
            shift
            $XDP verdict nic0 $verdict 600000 &
            local program=$!
            until ip link show nic0 | grep -q prog/xdp; do
                tries=$((tries + 1))
                [ $tries -lt 200 ] || {{ echo "no program $verdict"; return 1; }}
                sleep 0.1
            done
            takes nic0 packets nic0 alloc_failed "$@"
            kill $program
            wait $program 2>/dev/null || :
            echo ${{verdict%:*}}=1
        }}
        with tx nic0 xdp_tx nic0 xdp_tx_failed
        # Whether its ring is full is the model's to say, which takes frames as fast as it has a processor.
        with redirect:nic1 nic1 packets
        with bad nic0 xdp_aborted
        ethtool -G nic0 rx 64
        $XDP xsk nic0 0 zerocopy forward 1000000000 600000 >/tmp/socket &
        program=$!
        tries=0
        until grep -q bound /tmp/socket; do
            tries=$((tries + 1))
            [ $tries -lt 200 ] || {{ echo "not bound"; exit 1; }}
            sleep 0.1
        done
        takes nic0 xsk_packets nic0 alloc_failed && echo af_xdp=1
        up nic0
        rmmod opennic
        kill $program 2>/dev/null || :
        wait $program 2>/dev/null || :
        pools
        "#
    );
    let report = nic::run(settings, &script)?;
    for name in ["tx", "redirect", "bad", "af_xdp"] {
        report.check(report.value(name) == Some("1"), name)?;
    }
    no_page_left(&report)
}
