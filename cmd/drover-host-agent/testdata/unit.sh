# Runs as a service of systemd. What it finds is in /share/found, one fact a line.
set -eu
unit=drover-host-agent
trap 'systemctl --force --force poweroff' EXIT
found() { echo "$@" >>/share/found; }
await() {
	for _ in $(seq 600); do
		if "$@"; then return; fi
		sleep 0.1
	done
	echo "not in time: $*"
	exit 1
}
another() {
	pid=$(systemctl show -p MainPID --value $unit)
	[ "$pid" != 0 ] && [ "$pid" != "$1" ]
}
cp /share/drover-host-agent /usr/local/bin/
echo token-of-a-test-000000000000000000000000000 | drover-host-agent join --server https://127.0.0.1:1 --trust System
found "after join it is $(systemctl is-enabled $unit) and $(systemctl is-active $unit)"
systemctl stop $unit
cat >/var/lib/drover/host-agent/state/plan.json <<EOF
{"version": "v1", "plan": {"instructions": [
 {"id": "slow", "command": ["/bin/sh", "-c", "echo begun >>/share/ran; while [ ! -e /share/go ]; do sleep 0.1; done; echo ended >>/share/ran"]},
 {"id": "next", "command": ["/bin/sh", "-c", "echo next >>/share/ran"]}]}}
EOF
systemctl start $unit
await grep -qs begun /share/ran
systemctl restart $unit
killed=$(systemctl show -p MainPID --value $unit)
kill -9 "$killed"
await another "$killed"
touch /share/go
await grep -qs next /share/ran
found "after restart and kill it is $(systemctl is-active $unit), restarted by systemd $(systemctl show -p NRestarts --value $unit) time"
found "it ran: $(tr '\n' ' ' </share/ran)"
rm /var/lib/drover/host-agent/etc/config.json
systemctl restart $unit
found "without a configuration it is $(systemctl is-active $unit || true)"
