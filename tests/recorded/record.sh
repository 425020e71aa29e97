#!/usr/bin/env bash
# Record the state that a version of forkwise leaves on disk: record.sh FORKWISE OUTPUT.img.xz
#
# FORKWISE is the command of the version to record. Needs root. Everything happens in a mount namespace of its own, with
# the filesystem mounted at /mnt and a fixed machine id, because state names paths, inodes and the machine.
set -euo pipefail
if [ "${3:-}" != inside ]; then
    image=$(mktemp --suffix=.img)
    truncate -s 2M "$image"
    mkfs.ext4 -q -O ^has_journal -m 0 -I 256 "$image"
    unshare --mount "$0" "$1" "$image" inside
    xz -9e --stdout "$image" > "$2"
    rm "$image"
    exit
fi

forkwise=$1
mount --make-rprivate /
mount -o loop "$2" /mnt
identity=$(mktemp)
echo 0123456789abcdef0123456789abcdef > "$identity"
mount --bind "$identity" /etc/machine-id
export FORKWISE_STATE=/mnt/state
mkdir /mnt/project
cd /mnt/project
printf 'one\n' > a.txt
printf 'two\n' > b.txt
printf 'grep -q fixed a.txt\n' > check.sh

"$forkwise" branch create first
"$forkwise" branch run first -- sh -c 'echo more >> a.txt; echo new > c.txt'
"$forkwise" branch commit first
"$forkwise" best-of 2 -q --test 'sh check.sh' -- sh -c 'echo fixed >> a.txt'
"$forkwise" undo
"$forkwise" branch create kept
"$forkwise" branch run kept -- sh -c 'echo open > d.txt'

# A fork whose process is killed while its attempts run.
attempt='echo fixed >> b.txt; if [ ! -e go ]; then sleep 300; fi; echo fixed >> a.txt'
setsid "$forkwise" best-of 2 --test 'sh check.sh' -- sh -c "$attempt" > /dev/null 2>&1 &
until "$forkwise" ls --json | grep -q running; do sleep 0.2; done
sleep 2
kill -9 $!
rm "$identity"
findmnt -rn -o TARGET | grep '^/mnt/state' | sort -r | xargs -r -n1 umount
sync
