#!/bin/bash
# The life of a package in a root of its own: unshare --mount --pid --fork --net life.sh KIND OLD NEW TALK.py DIR
#
# KIND is deb or rpm, which OLD and NEW are.
# The root is the host's with a layer over it that is gone with this process: what is written stays in
# that layer, where it is counted. /tmp, /run and /dev are of its own as well. Ends with "all good".
set -euo pipefail
kind=$1 old=$2 new=$3 talk=$4 dir=$5

. "${BASH_SOURCE[0]%/*}/../../src/own_root.sh"
. "${BASH_SOURCE[0]%/*}/packager.sh"
cp "$old" "$root/tmp/old.$kind"
cp "$new" "$root/tmp/new.$kind"
cp "$talk" "$root/tmp/talk.py"
cd "$root"
ip link set lo up

version() { inside sluice --version; }
# It ends with 1 where no daemon runs.
status() { inside sluice status 2>&1 || true; }

[[ ! -e $root/usr/bin/sluice ]] || fail "sluice is installed on the host"
install old
version | grep -qF 'sluice ' || fail "sluice --version says $(version)"
inside sluice doctor >"$root/tmp/doctor" 2>&1 || fail "doctor: $(cat "$root/tmp/doctor")"
for page in man1/sluice.1 man1/sluice-enable.1 man8/sluiced.8 man5/sluiced.toml.5; do
    gzip -t "$root/usr/share/man/$page.gz" || fail "no $page"
done
[[ $(stat -c %a "$root/etc/sluice") == 700 ]] || fail "/etc/sluice can be read"
printf 'ok installed\n'

# A connection that is there when the packages change, up and down again.
lanes() {
    inside sluice status --json | jq '[.daemons[].status.processes[].connections[] | select(.path == "lane")] | length'
}
began() { # name
    # On a busy machine the first half may be over before there is a lane.
    for _ in {1..20}; do
        rm -f "$root/tmp/$1.half" "$root/tmp/$1.go"
        inside sluice run --stats -- python3 /tmp/talk.py "/tmp/$1.half" "/tmp/$1.go" >"$root/tmp/$1.out" 2>&1 &
        talk=$!
        until [[ -e $root/tmp/$1.half ]]; do
            kill -0 $talk 2>/dev/null || fail "$1: $(cat "$root/tmp/$1.out")"
            sleep 0.02
        done
        [[ $(lanes) != 2 ]] || return 0
        said "$1"
    done
    fail "no lane: $(cat "$root/tmp/$1.out")"
}
said() { # name
    touch "$root/tmp/$1.go"
    wait $talk || fail "$1: $(cat "$root/tmp/$1.out")"
    grep -q 'all 400 messages arrived' "$root/tmp/$1.out" || fail "$1: $(cat "$root/tmp/$1.out")"
}
ended() { # name
    said "$1"
    grep -q '2 connections, 2 on a lane' "$root/tmp/$1.out" || fail "no lane: $(cat "$root/tmp/$1.out")"
    cat "$root/tmp/$1.out"
}

mkdir -p "$root/usr/lib/systemd/system"
printf '[Service]\nExecStart=/bin/sleep 1\n' >"$root/usr/lib/systemd/system/sluice-test.service"
inside sluice enable sluice-test >/dev/null
drop_in=$root/etc/systemd/system/sluice-test.service.d/zz-sluice.conf
[[ $(status) == *'service sluice-test.service: starts under Sluice'* ]] || fail "status: $(status)"
printf '# mine\n' >>"$root/etc/default/sluiced"
began up
install new
ended up
printf 'ok upgraded\n'
[[ -e $drop_in ]] || fail "an upgrade has disabled services"
grep -q '# mine' "$root/etc/default/sluiced" || fail "an upgrade has overwritten /etc/default/sluiced"
began down
install old
ended down
[[ -e $drop_in ]] || fail "a downgrade has disabled services"
printf 'ok downgraded\n'

# What dpkg's trigger does when a unit has changed; who has rpm says it by hand.
printf '[Service]\nExecStart=/bin/sleep 2\n' >"$root/usr/lib/systemd/system/sluice-test.service"
[[ $(status) == *'has changed'* ]] || fail "status does not say that a unit has changed"
case $kind in
deb) inside /var/lib/dpkg/info/sluice.postinst triggered /usr/lib/systemd/system >/dev/null ;;
rpm) inside sluice enable --refresh >/dev/null ;;
esac
grep -q 'sleep 2' "$drop_in" || fail "the trigger has not written the drop-in anew"

remove sluice
[[ ! -e $drop_in ]] || fail "a removed sluice would still be started"
case $kind in
deb) purge sluice ;;
rpm)
    # What its owner has written is kept beside.
    grep -q '# mine' "$root/etc/default/sluiced.rpmsave" || fail "/etc/default/sluiced was thrown away"
    rm "$root/etc/default/sluiced.rpmsave"
    ;;
esac
rm "$root/usr/lib/systemd/system/sluice-test.service"
left=$(find "$dir/root-upper" \( -path "$dir/root-upper/var/lib/dpkg" -o -path "$dir/root-upper/var/lib/rpm" -o -path "$dir/root-upper/var/log" -o -path "$dir/root-upper/var/cache" -o -path "$dir/root-upper/root" \) -prune \
    -o \( -type f -o -type l \) -print)
[[ -z $left ]] || fail "left behind: $left"
[[ -z $(find "$dir/root-upper" -name '*sluice*' -not -path '*/var/*' -not -type c) ]] ||
    fail "left behind: $(find "$dir/root-upper" -name '*sluice*' -not -path '*/var/*' -not -type c)"
printf 'ok removed\nall good\n'
