set -eu
mount --make-rprivate /
printf '0123456789abcdef0123456789abcdef\n' > /tmp/rec2/machine-id
mount --bind /tmp/rec2/machine-id /etc/machine-id
mount -o loop /tmp/rec2/state.img /mnt
mkdir /mnt/project; cd /mnt/project; printf 'one\n' > a.txt; printf 'two\n' > b.txt; printf 'grep -q fixed a.txt\n' > check.sh
export PYTHONPATH=/tmp/before/src FORKWISE_STATE=/mnt/state HOME=/tmp/rec2
f() { /work/main/.venv/bin/python -c 'from forkwise.app.cli import main; main()' "$@"; }
f branch create first >/dev/null; f branch run first -- sh -c 'echo more >> a.txt; echo new > c.txt'; f branch commit first
f best-of 2 -q --test 'sh check.sh' -- sh -c 'echo fixed >> a.txt'
f undo
f branch create kept >/dev/null; f branch run kept -- sh -c 'echo open > d.txt'
setsid /work/main/.venv/bin/python -c 'from forkwise.app.cli import main; main()' best-of 2 --test 'sh check.sh' -- sh -c 'echo fixed >> b.txt; if [ ! -e /mnt/project/go ]; then sleep 300; fi; echo fixed >> a.txt' > out 2>&1 & 
pid=$!; rm -f out
for i in $(seq 60); do sleep 0.5; f ls --json | grep -q running && break; done; sleep 2; kill -9 $pid; sleep 2
f ls; f log; f branch ls
for m in $(findmnt -rn -o TARGET | grep ^/mnt/state | sort -r); do umount $m; done
rm -rf /mnt/project/__pycache__; find /mnt -xdev | wc -l
sync; umount /mnt
