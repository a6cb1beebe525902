// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// Scripts of a restore, according to the documentation of the distributions. At most one copy of the replaced data
// exists on a disk, in the directory etcd-replaced.
const (
	// findSnapshot finds a snapshot's file by its name or by a prefix of its name.
	findSnapshot = `db="$DATA/server/db"
if test -n "$BEGINS"; then set -- "$db/snapshots/$FILE"*; else set -- "$db/snapshots/$FILE"; fi
if test $# != 1 || ! test -f "$1"; then echo "$# files in $db/snapshots have the name $FILE, or none can be read" >&2; exit 1; fi
`
	// stop stops a server, and keeps it from starting when its machine starts. RKE2's pods keep running without its
	// service.
	stop = `if systemctl cat "$0" >/dev/null 2>&1; then systemctl stop "$0" && systemctl disable "$0" || exit; fi
for script in "$@"; do if test -x "$script"; then exec "$script"; fi; done`
	// replace replaces the data with the data from the snapshot. The former data stays in etcd-before-restore until the
	// outcome is known. If that directory already exists, the last attempt was interrupted. The reset also replaces
	// keys and certificates, so they are copied first.
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
	// keep keeps the replaced data, which includes its keys and certificates.
	keep = `db="$DATA/server/db"
if test -e "$db/etcd-before-restore"; then rm -rf "$db/etcd-replaced" && mv "$db/etcd-before-restore" "$db/etcd-replaced"; fi || exit
rm -rf "$DATA/server/cred-before-restore" "$DATA/server/tls-before-restore"`
	// resume restores the former data, if any, with its keys and certificates. A snapshot's keys and certificates are
	// older than those in etcd, and no server starts if the files on the disk are newer. Without any data, the host
	// that started the cluster would start another one.
	resume = `db="$DATA/server/db"; rm -f "$db/reset-flag"
if test -e "$db/etcd-before-restore"; then
	for part in cred tls; do
		test -d "$DATA/server/$part-before-restore" || continue
		rm -rf "$DATA/server/$part" && mv "$DATA/server/$part-before-restore" "$DATA/server/$part" || exit
	done
	rm -rf "$db/etcd" && mv "$db/etcd-before-restore" "$db/etcd" || exit
fi
test -d "$db/etcd/member" || { echo "$db/etcd has no data to start with: make another EtcdRestore, or delete the Host" >&2; exit 1; }`
	// rejoin moves away the data that was replaced elsewhere. It does so only once for each restore, because any data
	// that a later attempt finds belongs to the restored cluster. Keys and certificates are moved away together with
	// the data. If they were rotated after the snapshot, they are newer than the snapshot's keys, and no server starts
	// in that state. The server gets the cluster's keys with its token.
	rejoin = `db="$DATA/server/db" mark="$DATA/server/db/joins-$0"; if test -e "$mark"; then exit 0; fi
mkdir -p "$db" && rm -rf "$db/etcd-before-restore" "$db/reset-flag" "$db"/joins-* "$DATA"/server/*-before-restore || exit
for part in cred tls db/etcd; do
	test -e "$DATA/server/$part" || continue
	rm -rf "$DATA/server/$part-replaced" && mv "$DATA/server/$part" "$DATA/server/$part-replaced" || exit
done
touch "$mark"`
)

// cleanNodesScript removes the nodes that are not listed in $NODES, and the passwords of all nodes. A machine that was
// reinstalled since the snapshot has another password and would be refused forever. Afterward, the server accepts the
// next password that a node presents. The API server may be unavailable briefly.
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
