#!/bin/bash
# Boots systemd in namespaces of its own, over a copy of this machine's files that is thrown away. $1 is a folder with share/, root/ and over/.
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/over"
mkdir "$1/over/upper" "$1/over/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/over/upper,workdir=$1/over/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev
for device in null zero random urandom full tty; do
	touch "dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm share
mount --bind "$1/share" share
cat >etc/systemd/system/drover-test.target <<EOF
[Unit]
Requires=systemd-journald.service
After=systemd-journald.service
Wants=drover-test.service
AllowIsolate=yes
EOF
cat >etc/systemd/system/drover-test.service <<EOF
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/bash /share/unit.sh
StandardOutput=file:/share/log
StandardError=file:/share/log
EOF
echo 0123456789abcdef0123456789abcdef >etc/machine-id
touch share/booted
exec env -i container=docker PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot . /usr/lib/systemd/systemd --unit=drover-test.target --show-status=false
