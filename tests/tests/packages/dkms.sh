#!/bin/bash
# The life of a module's package: unshare --mount --pid --fork --net dkms.sh KIND KERNEL DKMS.deb DIR OLD NEW MODULE PACKAGE
#
# KIND is deb or rpm, which OLD and NEW are, of the PACKAGE; DKMS itself is Debian's.
# KERNEL is a folder of tests/guest/nic-kernel: a kernel's headers in a root file system. The root here is the host's
# with these in it, and layers over both that are gone with this process. Ends with "all good".
set -euo pipefail
kind=$1 kernel=$2 dkms=$3 dir=$4 old=$5 new=$6 module=$7 name=$8

. "${BASH_SOURCE[0]%/*}/../../src/own_root.sh"
version=$(<"$kernel/version")
for folder in "$kernel"/root/usr/src/linux-* "$kernel"/root/usr/lib/linux-kbuild-*; do
    [[ -e $folder ]] || continue
    mkdir -p "$root${folder#"$kernel/root"}"
    mount --bind "$folder" "$root${folder#"$kernel/root"}"
done
layer modules "$kernel/root/lib/modules/$version" "$root/lib/modules/$version"
cp "$dkms" "$root/tmp/dkms.deb"
cp "$old" "$root/tmp/old.$kind"
cp "$new" "$root/tmp/new.$kind"
cd "$root"

# What dkms and a kernel's headers want is not all there.
force_depends=--force-depends
. "${BASH_SOURCE[0]%/*}/packager.sh"
built=$root/lib/modules/$version/updates/dkms/$module.ko
is_built() { # version
    [[ -n $(find "$root/lib/modules/$version/updates/dkms" -name "$module.ko*" 2>/dev/null) ]] ||
        fail "no $built: $(cat "$root/tmp/packager" "$root"/var/lib/dkms/*/*/build/make.log 2>/dev/null)"
    [[ $(inside dkms status "$module") == *"$1, $version, x86_64: installed"* ]] || fail "$1: $(inside dkms status)"
    (($(inside dkms status "$module" | wc -l) == 1)) || fail "more than $1: $(inside dkms status)"
}

logged dkms inside dpkg --install --force-depends /tmp/dkms.deb
install old
is_built 0.0.1
[[ $(inside modinfo -k "$version" -F vermagic "$module") == "$version "* ]] || fail "$(inside modinfo "$module")"
printf 'ok installed\n'
install new
is_built 0.0.2
[[ ! -e $root/usr/src/$module-0.0.1 ]] || fail "the source of 0.0.1 is still there"
printf 'ok upgraded\n'
remove "$name"
[[ $kind == rpm ]] || purge "$name"
left=$(find usr/src var/lib/dkms "lib/modules/$version/updates" -name "$module*" 2>/dev/null || true)
[[ -z $left ]] || fail "left behind: $left"
printf 'ok removed\nall good\n'
