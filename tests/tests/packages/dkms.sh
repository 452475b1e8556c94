#!/bin/bash
# The life of a module's package: unshare --mount --pid --fork --net dkms.sh KERNEL DKMS.deb DIR OLD.deb NEW.deb MODULE
#
# KERNEL is a folder of tests/guest/nic-kernel: a kernel's headers in a root file system. The root here is the host's
# with these in it, and layers over both that are gone with this process. Ends with "all good".
set -euo pipefail
kernel=$1 dkms=$2 dir=$3 old=$4 new=$5 module=$6

. "${BASH_SOURCE[0]%/*}/../../src/own_root.sh"
version=$(<"$kernel/version")
for folder in "$kernel"/root/usr/src/linux-* "$kernel"/root/usr/lib/linux-kbuild-*; do
    [[ -e $folder ]] || continue
    mkdir -p "$root${folder#"$kernel/root"}"
    mount --bind "$folder" "$root${folder#"$kernel/root"}"
done
layer modules "$kernel/root/lib/modules/$version" "$root/lib/modules/$version"
cp "$dkms" "$root/tmp/dkms.deb"
cp "$old" "$root/tmp/old.deb"
cp "$new" "$root/tmp/new.deb"
cd "$root"

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"; }
install() { # name
    inside dpkg --install --force-depends "/tmp/$1.deb" >"$root/tmp/log" 2>&1 ||
        fail "$1: $(cat "$root/tmp/log" "$root"/var/lib/dkms/*/*/build/make.log 2>/dev/null)"
}
name=$(dpkg-deb --field "$old" Package)
built=$root/lib/modules/$version/updates/dkms/$module.ko
is_built() { # version
    [[ -n $(find "$root/lib/modules/$version/updates/dkms" -name "$module.ko*" 2>/dev/null) ]] ||
        fail "no $built: $(cat "$root/tmp/log" "$root"/var/lib/dkms/*/*/build/make.log 2>/dev/null)"
    [[ $(inside dkms status "$module") == *"$1, $version, x86_64: installed"* ]] || fail "$1: $(inside dkms status)"
    (($(inside dkms status "$module" | wc -l) == 1)) || fail "more than $1: $(inside dkms status)"
}

install dkms
install old
is_built 0.0.1
[[ $(inside modinfo -k "$version" -F vermagic "$module") == "$version "* ]] || fail "$(inside modinfo "$module")"
printf 'ok installed\n'
install new
is_built 0.0.2
[[ ! -e $root/usr/src/$module-0.0.1 ]] || fail "the source of 0.0.1 is still there"
printf 'ok upgraded\n'
inside dpkg --purge "$name" >"$root/tmp/log" 2>&1 || fail "purge: $(cat "$root/tmp/log")"
left=$(find usr/src var/lib/dkms "lib/modules/$version/updates" -name "$module*" 2>/dev/null || true)
[[ -z $left ]] || fail "left behind: $left"
printf 'ok removed\nall good\n'
