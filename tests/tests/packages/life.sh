#!/bin/bash
# The life of a package in a root of its own: unshare --mount --pid --fork --net life.sh OLD.deb NEW.deb TALK.py DIR
#
# The root is the host's with a layer over it that is gone with this process: what is written stays in
# that layer, where it is counted. /tmp, /run and /dev are of its own as well. Ends with "all good".
set -euo pipefail
old=$1 new=$2 talk=$3 dir=$4

. "${BASH_SOURCE[0]%/*}/../../src/own_root.sh"
cp "$old" "$root/tmp/old.deb"
cp "$new" "$root/tmp/new.deb"
cp "$talk" "$root/tmp/talk.py"
cd "$root"
ip link set lo up

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"; }
install() { inside dpkg --install --force-downgrade "/tmp/$1.deb" >"$root/tmp/dpkg" 2>&1 || fail "$1: $(cat "$root/tmp/dpkg")"; }
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
began() { # name
    inside sluice run --stats -- python3 /tmp/talk.py "/tmp/$1.half" "/tmp/$1.go" >"$root/tmp/$1.out" 2>&1 &
    until [[ -e $root/tmp/$1.half ]]; do
        kill -0 $! 2>/dev/null || fail "$1: $(cat "$root/tmp/$1.out")"
        sleep 0.02
    done
}
ended() { # name
    touch "$root/tmp/$1.go"
    wait $! || fail "$1: $(cat "$root/tmp/$1.out")"
    grep -q 'all 400 messages arrived' "$root/tmp/$1.out" || fail "$1: $(cat "$root/tmp/$1.out")"
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

# What the trigger does when a unit has changed.
printf '[Service]\nExecStart=/bin/sleep 2\n' >"$root/usr/lib/systemd/system/sluice-test.service"
[[ $(status) == *'has changed'* ]] || fail "status does not say that a unit has changed"
inside /var/lib/dpkg/info/sluice.postinst triggered /usr/lib/systemd/system >/dev/null
grep -q 'sleep 2' "$drop_in" || fail "the trigger has not written the drop-in anew"

inside dpkg --remove sluice >/dev/null 2>&1 || fail "removal"
[[ ! -e $drop_in ]] || fail "a removed sluice would still be started"
inside dpkg --purge sluice >/dev/null 2>&1 || fail "purge"
rm "$root/usr/lib/systemd/system/sluice-test.service"
left=$(find "$dir/root-upper" \( -path "$dir/root-upper/var/lib/dpkg" -o -path "$dir/root-upper/var/log" -o -path "$dir/root-upper/var/cache" -o -path "$dir/root-upper/root" \) -prune \
    -o \( -type f -o -type l \) -print)
[[ -z $left ]] || fail "left behind: $left"
[[ -z $(find "$dir/root-upper" -name '*sluice*' -not -path '*/var/*' -not -type c) ]] ||
    fail "left behind: $(find "$dir/root-upper" -name '*sluice*' -not -path '*/var/*' -not -type c)"
printf 'ok removed\nall good\n'
