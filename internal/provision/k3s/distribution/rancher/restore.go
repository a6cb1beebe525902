// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"strings"

	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// file returns the environment variables that identify the snapshot file.
func file(of *roster.Restoring) []string {
	variables := []string{"FILE=" + of.File}
	if of.Begins {
		variables = append(variables, "BEGINS=true")
	}
	return variables
}

func (r rancher) Find(in *roster.Input, of *roster.Restoring) []string {
	return r.runWith(in, file(of), findSnapshot)
}

func (r rancher) Stop(in *roster.Input) []string {
	return r.runWith(in, []string{r.dataDirVariable + "=" + r.dataDir(in)}, append([]string{stop, r.server}, r.stopPods...)...)
}

func (r rancher) Restore(in *roster.Input, of *roster.Restoring) []string {
	script := replaceFromStore
	if of.Host != "" {
		script = replaceFromDisk
	}
	return r.runWith(in, file(of), script, r.name)
}

func (r rancher) Keep(in *roster.Input) []string { return r.run(in, keep) }

func (r rancher) Resume(in *roster.Input) []string { return r.run(in, resume) }

func (r rancher) Rejoin(in *roster.Input, epoch string) []string { return r.run(in, rejoin, epoch) }

func (r rancher) Forget(in *roster.Input, node string) []string {
	return r.run(in, dropPassword(r), node)
}

func (r rancher) KeepNodes(in *roster.Input, nodes []string) []string {
	return r.runWith(in, []string{"NODES=" + strings.Join(nodes, " ")}, cleanNodesScript(r))
}

// Scripts for restores. They follow the documentation of the distributions. At most one copy of the replaced data is
// kept on a disk, in the directory etcd-replaced.
const (
	// findSnapshot finds the file of a snapshot by its name or a prefix of its name.
	findSnapshot = `db="$DATA/server/db"
if test -n "$BEGINS"; then set -- "$db/snapshots/$FILE"*; else set -- "$db/snapshots/$FILE"; fi
if test $# != 1 || ! test -f "$1"; then echo "$# files in $db/snapshots have the name $FILE, or none can be read" >&2; exit 1; fi
`
	// stop stops a server, and prevents it from starting when its machine starts. It also stops RKE2's pods, which
	// would keep running after the service is stopped.
	stop = `if systemctl cat "$0" >/dev/null 2>&1; then systemctl stop "$0" && systemctl disable "$0" || exit; fi
for script in "$@"; do if test -x "$script"; then exec "$script"; fi; done`
	// replace replaces the data with the data from the snapshot. The previous data is kept in etcd-before-restore until
	// the result is known. If that directory already exists, the previous attempt was interrupted. Keys and certificates
	// are copied first, because the reset also replaces them.
	replace = `if test -e "$db/etcd-before-restore"; then rm -rf "$db/etcd"; else
	for part in cred tls; do
		rm -rf "$DATA/server/$part-before-restore" || exit
		test ! -d "$DATA/server/$part" || cp -a "$DATA/server/$part" "$DATA/server/$part-before-restore" || exit
	done
	if test -e "$db/etcd"; then mv "$db/etcd" "$db/etcd-before-restore"; else mkdir -p "$db/etcd-before-restore"; fi
fi || exit
rm -f "$db/reset-flag"
"$0" server --cluster-reset --data-dir "$DATA" `
	replaceFromDisk  = findSnapshot + replace + `--etcd-s3=false --cluster-reset-restore-path="$1"`
	replaceFromStore = `db="$DATA/server/db"` + "\n" + replace + `--cluster-reset-restore-path="$FILE"`
	// keep moves the replaced data to etcd-replaced.
	keep = `db="$DATA/server/db"
if test -e "$db/etcd-before-restore"; then rm -rf "$db/etcd-replaced" && mv "$db/etcd-before-restore" "$db/etcd-replaced"; fi || exit
rm -rf "$DATA/server/cred-before-restore" "$DATA/server/tls-before-restore"`
	// resume restores the previous data, if there is any, with its keys and certificates. A server does not start if
	// the keys and certificates on its disk are newer than those in etcd. Without any data, the host that started the
	// cluster would start a new cluster.
	resume = `db="$DATA/server/db"; rm -f "$db/reset-flag"
if test -e "$db/etcd-before-restore"; then
	for part in cred tls; do
		test -d "$DATA/server/$part-before-restore" || continue
		rm -rf "$DATA/server/$part" && mv "$DATA/server/$part-before-restore" "$DATA/server/$part" || exit
	done
	rm -rf "$db/etcd" && mv "$db/etcd-before-restore" "$db/etcd" || exit
fi
test -d "$db/etcd/member" || { echo "$db/etcd has no data to start with: make another EtcdRestore, or delete the Host" >&2; exit 1; }`
	// rejoin moves a server's old data away after another server was restored. It moves the data only once per restore:
	// data that a later attempt finds belongs to the restored cluster. It also moves keys and certificates away. If
	// they were rotated after the snapshot was taken, they are newer than those in the snapshot, and the server would
	// not start. The server gets the cluster's keys when it joins with its token.
	rejoin = `db="$DATA/server/db" mark="$DATA/server/db/joins-$0"; if test -e "$mark"; then exit 0; fi
mkdir -p "$db" && rm -rf "$db/etcd-before-restore" "$db/reset-flag" "$db"/joins-* "$DATA"/server/*-before-restore || exit
for part in cred tls db/etcd; do
	test -e "$DATA/server/$part" || continue
	rm -rf "$DATA/server/$part-replaced" && mv "$DATA/server/$part" "$DATA/server/$part-replaced" || exit
done
touch "$mark"`
)

// cleanNodesScript removes the nodes that are not listed in $NODES. It also removes the passwords of all nodes. A
// machine that was reinstalled after the snapshot has a new password, which servers refuse as long as the old password
// is stored. Once the stored password is gone, they accept the next password that the node presents. The script retries
// while the API server is unavailable.
func cleanNodesScript(r rancher) string {
	return `for i in $(seq 60); do all=$(` + r.kubectl + ` get nodes -o name) && break; sleep 5; done
test -n "$all" || exit 1
for node in $all; do
	name=${node#node/}
	case " $NODES " in *" $name "*) ;; *) ` + r.kubectl + ` delete node "$name" --ignore-not-found --timeout=60s || exit ;; esac
done
secrets=$(` + r.kubectl + ` -n kube-system get secrets -o name) || exit
for secret in $secrets; do
	case $secret in *.node-password.` + r.name + `) ` + r.kubectl + ` -n kube-system delete "$secret" --ignore-not-found --timeout=60s || exit ;; esac
done`
}

// dropPassword deletes the password of a server's own node. The snapshot may contain the password of another machine
// that had the same node name.
func dropPassword(r rancher) string {
	return `for i in $(seq 60); do
	` + r.kubectl + ` -n kube-system delete secret "$0.node-password.` + r.name + `" --ignore-not-found --timeout=60s && exit
	sleep 5
done; exit 1`
}
