// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"path"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// paths lists the usual directories for binaries, and the directories that the distributions' installers use.
const paths = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/opt/rke2/bin"

// run returns a command that runs a script with arguments. Values are not passed as environment variables of the
// instruction, because a host treats these as secrets and redacts them in its reports.
func (r rancher) run(in *roster.Input, words ...string) []string { return r.runWith(in, nil, words...) }

// runWith is like run, but also sets the given environment variables.
func (r rancher) runWith(in *roster.Input, variables []string, words ...string) []string {
	return slices.Concat([]string{"/usr/bin/env", "PATH=" + paths, "DATA=" + r.dataDir(in)}, variables, []string{"/bin/sh", "-c"}, words)
}

func (r rancher) Install(in *roster.Input, host *roster.Member) []string {
	i, kind := in.Spec.Installer, "agent"
	if host.IsServer() {
		kind = "server"
	}
	command := append([]string{"/usr/bin/env", "INSTALL_" + strings.ToUpper(r.name) + "_VERSION=" + in.Spec.Version}, r.installs(kind)...)
	if i.Path != "" {
		return append(command, "/bin/sh", "-c", run, i.Path)
	}
	return append(command, "/bin/sh", "-c", fetch, cmp.Or(i.URL, r.script), i.SHA256)
}

func (r rancher) Check(in *roster.Input) []string {
	return r.run(in, checkInstalled(), r.name, in.Spec.Version, r.folder())
}

func (r rancher) Service(host *roster.Member) string {
	if host.IsServer() {
		return r.server
	}
	return r.agent
}

func (r rancher) Start(in *roster.Input, host *roster.Member) []string {
	return r.run(in, append([]string{start, r.Service(host)}, startOptions(host)...)...)
}

// startOptions returns options for systemctl. For a server that runs only etcd, systemctl must not wait until the
// server is up, because it comes up only after a server with an API server has joined.
func startOptions(m *roster.Member) []string {
	if m.Is(provisionv1.RoleEtcd) && !m.Is(provisionv1.RoleControlPlane) {
		return []string{"--no-block"}
	}
	return nil
}

// probes returns probes that send requests to the loopback interface of the host.
func (r rancher) Probes(in *roster.Input, host *roster.Member) []protocol.HostProbe {
	tls := path.Join(r.dataDir(in), "server/tls")
	var probes []protocol.HostProbe
	if len(startOptions(host)) == 0 {
		probes = append(probes, protocol.HostProbe{Name: "kubelet", URL: "http://127.0.0.1:10248/healthz"})
	}
	if host.Is(provisionv1.RoleEtcd) {
		probes = append(probes, protocol.HostProbe{Name: "etcd", URL: "http://127.0.0.1:2381/health"})
	}
	if host.Is(provisionv1.RoleControlPlane) {
		probes = append(probes, protocol.HostProbe{
			Name: "kube-apiserver", URL: "https://127.0.0.1:6443/readyz",
			CAFile: tls + "/server-ca.crt", CertFile: tls + "/client-kube-apiserver.crt", KeyFile: tls + "/client-kube-apiserver.key",
		})
	}
	return probes
}

func (r rancher) RotateCertificates(in *roster.Input, host *roster.Member) []string {
	return r.run(in, rotate, r.Service(host), r.name)
}

func (r rancher) RotateKeys(in *roster.Input) []string { return r.run(in, rotateKeys(r), r.name) }

func (r rancher) Snapshot(in *roster.Input, name string) []string {
	want := "1"
	if in.Spec.Etcd.S3 != nil {
		want = "2"
	}
	return r.run(in, snapshot, r.name, want, name)
}

func (r rancher) RemoveNode(in *roster.Input, node string) []string {
	return r.run(in, removeScript(r), node)
}

func (r rancher) Leave(in *roster.Input, node string) []string {
	return r.run(in, leaveScript(r), node)
}

func (r rancher) Clean(in *roster.Input, host *roster.Member) protocol.HostInstruction {
	uninstall := r.cleanAgent
	if host.IsServer() {
		uninstall = r.cleanServer
	}
	return protocol.HostInstruction{
		Command: append([]string{"/bin/sh", "-c", clean, "clean"}, uninstall...),
		Env:     map[string]string{r.dataDirVariable: r.dataDir(in)},
	}
}

// Machine returns the same command for both distributions, because uninstalling one of them does not remove the files
// of the other.
func (r rancher) Machine() distribution.Machine {
	var all []string
	for _, name := range []string{"rke2-uninstall.sh", "k3s-uninstall.sh", "k3s-agent-uninstall.sh"} {
		all = append(all, places(name)...)
	}
	return distribution.Machine{
		Distribution: r.name, Remove: append([]string{"/bin/sh", "-c", clean, "clean"}, all...),
		Kubeconfig: r.config, Programs: r.folders,
	}
}

// snapshot takes an etcd snapshot. It fails unless the snapshot was saved in $1 places: on the disk and, if a bucket is
// configured, in the bucket. The distributions exit with status 0 even if the disk is full or the object store refuses
// the copy, but their output names the saved snapshots. The command may time out while the server continues. In that
// case, the script checks the list of snapshots.
const snapshot = `want=$1 name=$2
if test "$want" = 2; then set -- --etcd-s3-timeout=45m; else set --; fi
out=$("$0" etcd-snapshot save --name "$name" --data-dir "$DATA" "$@" 2>&1); code=$?
printf '%s\n' "$out"
listed() {
	"$0" etcd-snapshot ls --data-dir "$DATA" | awk -v name="$name-" 'index($1, name) == 1 && $1 !~ /[.]part$/' | grep -c .
}
case "$code $out" in
0\ *) saved=$(printf '%s\n' "$out" | grep -F "Snapshot $name-" | grep -c 'saved[.]') ;;
*deadline\ exceeded*|*Client.Timeout*)
	echo "the command has given up, and the server may go on: waiting for the snapshot to be listed"
	for i in $(seq 120); do saved=$(listed); test "$saved" -lt "$want" || break; sleep 5; done ;;
*) exit "$code" ;;
esac
whole=
for file in "$DATA/server/db/snapshots/$name"-*; do case $file in *.part) ;; *) test ! -s "$file" || whole=$file ;; esac; done
if test "$saved" -ge "$want" && test -n "$whole"; then exit 0; fi
if test -z "$whole"; then why="$DATA/server/db/snapshots has no file of it: is the disk full?"
else why="it is on the disk alone: does the store take it?"; fi
echo "the snapshot $name was not saved at $want places, but at $saved: $why The log of the service says more" >&2
exit 1`

// rotateKeys rotates the keys that encrypt Secrets, and waits until all Secrets are encrypted with the new key. A
// server that is restarted too early cannot read the Secrets. The command may time out while the server continues, so
// the script checks the active key. After a failed command, the script waits for up to twice the time that it takes to
// encrypt all Secrets at five Secrets per second.
func rotateKeys(r rancher) string {
	return `status() { "$0" secrets-encrypt status --data-dir "$DATA"; }
active() { status | awk '$1 == "*" { print $3 }'; }
before=$(active)
test -n "$before" || { echo "there is no active encryption key" >&2; exit 1; }
"$0" secrets-encrypt rotate-keys --data-dir "$DATA"; code=$?
for i in $(seq 120); do
	now=$(active); test -n "$now" && test "$now" != "$before" && break
	test "$i" -lt 120 || exit "$((code ? code : 1))"; sleep 5
done
rounds=` + keysRounds + `
if test "$code" != 0; then
	secrets=$(` + r.kubectl + ` get secrets -A -o name | grep -c .)
	rounds=$((120 + secrets * 2 / 25))
fi
for i in $(seq "$rounds"); do status | grep reencrypt_finished && exit; sleep 5; done
status >&2
echo "the key was changed, and not all Secrets are encrypted with it: the command has failed, and the stage stays" >&2
exit "$((code ? code : 1))"`
}

// keysRounds is greater than the number of 5-second rounds that fit within a task's timeout.
const keysRounds = "10000"

// checkInstalled fails unless the version in the spec is installed. It also fails if a file on the machine changes
// options that Drover sets. The check is necessary because the distributions' install scripts ignore the requested
// version in offline mode.
func checkInstalled() string {
	return `has=$("$0" --version | awk 'NR == 1 { print $3 }')
if test "$has" != "$1"; then
	echo "this machine has $0 ${has:-of no version}, and spec.version is $1: an installer that downloads nothing leaves" \
		"what is there. Put the program of $1 on the machine, then change spec, for example installer, to try again" >&2
	exit 1
fi
for file in "$2"/config.yaml.d/*; do
	test -f "$file" || continue
	option=$(sed -nE "s/^[\"']?-*(` + reservedPattern() + `)[\"']?[+]?(=[^:]*)?[\"']?[[:space:]]*:.*/\1/p" "$file")
	test -z "$option" || { echo "$file sets" $option "which Drover decides: remove that from the file" >&2; exit 1; }
done`
}

// leaveScript removes a server's node from a working cluster. This also removes the server's etcd member, which would
// otherwise count toward the quorum. If the cluster does not respond, the script assumes that the cluster no longer
// exists. If this is the only server, no quorum is needed.
func leaveScript(r rancher) string {
	return `kubectl() { ` + r.kubectl + ` --request-timeout=10s "$@"; }
for i in $(seq 12); do
	for try in 1 2 3; do
		if node=$(kubectl get node "$0" -o name --ignore-not-found 2>/dev/null); then break; fi
		test "$try" -lt 3 || exit 0
		sleep 5
	done
	test -n "$node" || exit 0
	nodes=$(kubectl get nodes -l node-role.kubernetes.io/etcd -o name 2>/dev/null) || continue
	test "$nodes" != "node/$0" || exit 0
	` + r.kubectl + ` delete node "$0" --ignore-not-found --timeout=30s && exit
	sleep 5
done
echo "the node $0 is in a cluster that works, and could not be removed from it: this machine is not cleaned," \
	"since etcd would count it. Remove the node, or stop the service on this machine, then clean it again" >&2
exit 1`
}

// Scripts that install and start a distribution.
const (
	// try runs "attempt" up to five times, because an installer's downloads may fail temporarily and failed
	// instructions are not retried.
	try = `for i in 1 2 3 4 5; do attempt && exit; code=$?; echo "attempt $i of 5 has failed: exit code $code" >&2; sleep 10; done; exit $code`
	// fetch downloads an installer and runs it.
	fetch = `file=$(mktemp) && trap 'rm -f "$file"' EXIT || exit
url=$0 sum=$1
attempt() {
	curl -fsSL --proto =https --retry 3 -o "$file" "$url" || return
	test -z "$sum" || echo "$sum  $file" | sha256sum -c - || return
	sh "$file"
}
` + try
	// run runs an installer that is already on the machine.
	run = `script=$0; attempt() { sh "$script"; }; ` + try
	// start starts or restarts a unit. It returns when the distribution reports that it is up. systemd restarts a
	// failed unit, so the first failure is not final. If the script does not wait for the unit to start, it stops the
	// unit first, so that no probe reaches the old process.
	start = `systemctl daemon-reload && systemctl enable "$0" || exit
test -z "$1" || systemctl stop "$0"
systemctl restart $1 "$0" && exit; code=$?
for i in $(seq 60); do sleep 5; systemctl is-active --quiet "$0" && exit; done
journalctl -u "$0" -n 15 --no-pager >&2; exit $code`
	// rotate renews certificates. It does nothing on a host that has never been started and therefore has no
	// certificates.
	rotate = `test ! -d "$DATA/server/tls" || { systemctl stop "$0"; "$1" certificate rotate --data-dir "$DATA" || { code=$?; systemctl start "$0"; exit $code; }; }`
)

// removeScript removes a node. The distribution then removes the node's etcd member. The script retries while the API
// server is unavailable.
func removeScript(r rancher) string {
	return `for i in $(seq 60); do ` + r.kubectl + ` delete node --ignore-not-found --timeout=60s -- "$0" && exit; sleep 5; done; exit 1`
}

// clean is a script that runs the uninstall scripts in its arguments, if they exist. It fails if k3s or RKE2 is still
// running afterward. Without this check, a host whose installer put the uninstall script in a different place would be
// considered clean even though it is still a node.
//
// The script also removes data that the uninstall scripts leave behind: the node's password, and data in a user-defined
// directory. Uninstall scripts released before July 2024 do not remove that directory. RKE2's script fails if that
// directory is a mount point, but only after it has emptied the directory.
const clean = `ran=
for script in "$@"; do
	test -x "$script" || continue
	ran=1; "$script" && continue; code=$?
	test -n "${RKE2_DATA_DIR:-}" && mountpoint -q "$RKE2_DATA_DIR" || exit "$code"
	echo "$script has failed, since $RKE2_DATA_DIR is a mount point, which stays" >&2
done
for unit in rke2-server rke2-agent k3s k3s-agent; do
	case $(systemctl is-active "$unit" 2>/dev/null) in active|activating|reloading|deactivating)
		echo "$unit still runs: no script that removes it is at $*, or the script has left it; remove it on the machine" >&2; exit 1
	esac
done
for folder in "${K3S_DATA_DIR:-}" "${RKE2_DATA_DIR:-}"; do
	test -n "$ran" && test -n "$folder" || continue
	for part in server agent data bin; do test ! -d "$folder/$part" || find "$folder/$part" -xdev -depth -delete || exit; done
done
rm -rf /etc/rancher/node`
