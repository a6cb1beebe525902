// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// Scripts of a restore, by the documentation of the distributions. A disk has at most one copy of the data that was
// replaced, in etcd-replaced.
const (
	// findSnapshot finds the file of a snapshot by its name, or by what that begins with and nothing else.
	findSnapshot = `db="$DATA/server/db"
if test -n "$BEGINS"; then set -- "$db/snapshots/$FILE"*; else set -- "$db/snapshots/$FILE"; fi
if test $# != 1 || ! test -f "$1"; then echo "$# files in $db/snapshots have the name $FILE, or none can be read" >&2; exit 1; fi
`
	// stop stops a server, and keeps it from being started with its machine. What RKE2 runs as pods goes on without its
	// service.
	stop = `if systemctl cat "$0" >/dev/null 2>&1; then systemctl stop "$0" && systemctl disable "$0" || exit; fi
for script in "$@"; do if test -x "$script"; then exec "$script"; fi; done`
	// replace replaces the data by that of a snapshot. The data before is in etcd-before-restore until the outcome is
	// known: if it is there already, the last attempt has ended in its middle. The reset replaces keys and certificates,
	// too, which are copied before.
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
	// keep keeps the data that was replaced. Its keys and certificates are in it.
	keep = `db="$DATA/server/db"
if test -e "$db/etcd-before-restore"; then rm -rf "$db/etcd-replaced" && mv "$db/etcd-before-restore" "$db/etcd-replaced"; fi || exit
rm -rf "$DATA/server/cred-before-restore" "$DATA/server/tls-before-restore"`
	// resume brings back the data that was to be replaced, if there is some, with its keys and certificates: those
	// of a snapshot are older than what etcd has, and newer on the disk, with which no server starts. Without any
	// data, the host that began the cluster would begin another one.
	resume = `db="$DATA/server/db"; rm -f "$db/reset-flag"
if test -e "$db/etcd-before-restore"; then
	for part in cred tls; do
		test -d "$DATA/server/$part-before-restore" || continue
		rm -rf "$DATA/server/$part" && mv "$DATA/server/$part-before-restore" "$DATA/server/$part" || exit
	done
	rm -rf "$db/etcd" && mv "$db/etcd-before-restore" "$db/etcd" || exit
fi
test -d "$db/etcd/member" || { echo "$db/etcd has no data to start with: make another EtcdRestore, or delete the Host" >&2; exit 1; }`
	// rejoin moves away the data that was replaced elsewhere, once for each restore: what a later attempt finds is
	// of the restored cluster. Keys and certificates go with it: no server starts with those that are newer than
	// what the snapshot has, as after a rotation of keys. It gets the cluster's by its token.
	rejoin = `db="$DATA/server/db" mark="$DATA/server/db/joins-$0"; if test -e "$mark"; then exit 0; fi
mkdir -p "$db" && rm -rf "$db/etcd-before-restore" "$db/reset-flag" "$db"/joins-* "$DATA"/server/*-before-restore || exit
for part in cred tls db/etcd; do
	test -e "$DATA/server/$part" || continue
	rm -rf "$DATA/server/$part-replaced" && mv "$DATA/server/$part" "$DATA/server/$part-replaced" || exit
done
touch "$mark"`
)

// cleanNodesScript removes the nodes that $NODES does not name, and the passwords of all nodes: a machine that was
// installed anew since the snapshot has another one, and would be refused for ever. The server takes the password
// that a node shows next. The API server may be away for a moment.
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
