// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"maps"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Times that the parts of a restore may take, in seconds.
const (
	findTimeout    = 60
	stopTimeout    = 900
	restoreTimeout = 3600
)

// Scripts of a restore, by the documentation of the distributions. A disk has at most one copy of the data that was replaced, in etcd-replaced.
const (
	// findSnapshot finds the file of a snapshot by its name, or by what that begins with and nothing else.
	findSnapshot = `db="$DATA/server/db"
if test -n "$BEGINS"; then set -- "$db/snapshots/$FILE"*; else set -- "$db/snapshots/$FILE"; fi
if test $# != 1 || ! test -f "$1"; then echo "$# files in $db/snapshots have the name $FILE, or none can be read" >&2; exit 1; fi
`
	// stop stops a server, and keeps it from being started with its machine. What RKE2 runs as pods goes on without its service.
	stop = `if systemctl cat "$0" >/dev/null 2>&1; then systemctl stop "$0" && systemctl disable "$0" || exit; fi
for script in "$@"; do if test -x "$script"; then exec "$script"; fi; done`
	// replace replaces the data by that of a snapshot. The data before is in etcd-before-restore until the outcome is known: if it is there already, the last attempt
	// has ended in its middle. The reset replaces keys and certificates, too, which are copied before.
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

// Part is a host's in restores of etcd.
type Part struct {
	// Epoch is the last restore of etcd that the host's data is of, or that it joins anew after.
	Epoch string `json:"epoch,omitempty"`
	// Finds is the restore for which the host looks for a file, and Stopped that for which it is stopped.
	Finds   string `json:"finds,omitempty"`
	Stopped string `json:"stopped,omitempty"`
	// Restores is the restore for which the host replaces its data, until it is up again.
	Restores string `json:"restores,omitempty"`
	// Resumes reports that the host has the data back that it had before it was stopped, until it is up again.
	Resumes bool `json:"resumes,omitempty"`
	// Rejoins reports that the host moves its data away before it starts, until it is up again.
	Rejoins bool `json:"rejoins,omitempty"`
}

// StoredRestores is what is stored of restores of etcd.
type StoredRestores struct {
	// Restore is the one that is under way, nil for none.
	Restore *Restoring `json:"restore,omitempty"`
	// Epoch is the last restore that has replaced the data of etcd. A server whose data is of another one does not start with it.
	Epoch string `json:"epoch,omitempty"`
	// Stops is the last restore for which the servers were stopped: they are started again after it.
	Stops string `json:"stops,omitempty"`
}

// cleanNodesScript removes the nodes that $NODES does not name, and the passwords of all nodes: a machine that was
// installed anew since the snapshot has another one, and would be refused for ever. The server takes the password
// that a node shows next. The API server may be away for a moment.
func cleanNodesScript(f flavor) string {
	return `for i in $(seq 60); do all=$(` + f.kubectl + ` get nodes -o name) && break; sleep 5; done
test -n "$all" || exit 1
for node in $all; do
	name=${node#node/}
	case " $NODES " in *" $name "*) ;; *) ` + f.kubectl + ` delete node "$name" --ignore-not-found --timeout=60s || exit ;; esac
done
secrets=$(` + f.kubectl + ` -n kube-system get secrets -o name) || exit
for secret in $secrets; do
	case $secret in *.node-password.` + f.name + `) ` + f.kubectl + ` -n kube-system delete "$secret" --ignore-not-found --timeout=60s || exit ;; esac
done`
}

// partPlan returns a plan for a part of a restore: the host keeps its files and what is remembered of it, and does one thing only.
func (in *Input) partPlan(host *member, part Part, does protocol.HostInstruction) (*Plan, error) {
	p, err := in.plan(host, host.Held.Join, nil)
	if err != nil {
		return nil, err
	}
	p.Held = *host.Held
	p.Task, p.Removes, p.Finds = "", nil, part.Finds
	if part.Stopped != "" {
		p.Stopped = part.Stopped
	}
	p.Instructions, p.Probes = []protocol.HostInstruction{does}, nil
	return p, nil
}

// file are the variables that name a file.
func file(r *Restoring) []string {
	variables := []string{"FILE=" + r.File}
	if r.Begins {
		variables = append(variables, "BEGINS=true")
	}
	return variables
}

func (in *Input) findFile(r *Restoring) protocol.HostInstruction {
	return protocol.HostInstruction{ID: "find-" + r.ID, Command: in.scriptWith(file(r), findSnapshot), TimeoutSeconds: findTimeout}
}

func (in *Input) stopServer(id string) protocol.HostInstruction {
	f := in.flavor()
	return protocol.HostInstruction{ID: "stop-" + id, Command: in.scriptWith([]string{f.dataDir + "=" + in.dataDir()}, append([]string{stop, f.server}, f.stopPods...)...), TimeoutSeconds: stopTimeout}
}

// restorePlan has a host that is stopped replace its data. It is not started by that: other servers have the old data until this has succeeded.
func (in *Input) restorePlan(host *member, r *Restoring) (*Plan, error) {
	p, err := in.plan(host, "", nil) // no server's URL may be in the configuration
	if err != nil {
		return nil, err
	}
	held := Held{Roles: p.Roles, Version: p.Version, Part: Part{Epoch: noEpoch}}
	if host.Held != nil {
		held = *host.Held
	}
	held.Version, held.Install, held.Installs, held.Stopped, held.Restores, held.Finds = p.Version, p.Install, p.Installs, r.ID, r.ID, ""
	install := p.Instructions[:2] // with its check
	script := replaceFromStore
	if r.Host != "" {
		script = replaceFromDisk
	}
	p.Held, p.Probes = held, nil
	p.Instructions = append([]protocol.HostInstruction{in.stopServer(r.ID)}, install...)
	if host.Held != nil && host.Held.Restores != "" && host.Held.Restores == in.Stored.Epoch { // it has restored what is there now, and was not started since
		p.Instructions = append(p.Instructions, in.onDisk("keep-"+in.Stored.Epoch, keep))
	}
	p.Instructions = append(p.Instructions, protocol.HostInstruction{
		ID: "restore-" + r.ID, Command: in.scriptWith(file(r), script, in.flavor().name), TimeoutSeconds: restoreTimeout,
	})
	return p, nil
}

// onDisk is an instruction that moves data of a server.
func (in *Input) onDisk(id, script string, args ...string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: in.script(append([]string{script}, args...)...), TimeoutSeconds: stopTimeout}
}

// restored is the restore that a host is started again for, empty for none: a server for each for which servers were stopped, a worker for each that has replaced data.
func (in *Input) restored(host *member) string {
	if host.server() {
		return in.Stored.Stops
	}
	return in.Stored.Epoch
}

// noEpoch is that of a host that had no data when it was to restore some.
const noEpoch = "none"

// beforeStart returns what a host does before it is started since a restore, and remembers that in its plan until it is up.
func (in *Input) beforeStart(p *Plan, host *member) []protocol.HostInstruction {
	p.Epoch = in.Stored.Epoch
	held := host.Held
	if held == nil || !host.server() || held.Epoch == p.Epoch && host.up() {
		return nil
	}
	switch {
	case held.Restores != "" && held.Restores == p.Epoch:
		p.Restores = held.Restores
		return []protocol.HostInstruction{in.onDisk("keep-"+held.Restores, keep)}
	case held.Epoch != p.Epoch || held.Rejoins: // whether it has moved its data away already is known to its disk alone
		p.Rejoins = true
		return []protocol.HostInstruction{in.onDisk("rejoin-"+digest(p.Epoch, p.Start), rejoin, p.Epoch)}
	case host.is(provisionv1.RoleEtcd) && held.Epoch == p.Epoch && (held.Stopped != "" || held.Resumes):
		p.Resumes = true
		return []protocol.HostInstruction{in.onDisk("resume-"+digest(in.Stored.Stops, p.Start), resume)}
	}
	return nil
}

// afterStart returns what a server does once it is started with the data of a snapshot: its own node is in that, too.
func (in *Input) afterStart(p *Plan, host *member) []protocol.HostInstruction {
	if p.Restores == "" && !p.Rejoins || !host.is(provisionv1.RoleControlPlane) {
		return nil
	}
	return []protocol.HostInstruction{{
		ID: "password-" + digest(p.Epoch, p.Start), Command: in.script(dropPassword(in.flavor()), host.Name), TimeoutSeconds: removeTimeout}}
}

// removeNodes removes nodes that the snapshot has and the cluster has not.
func (d *decision) removeNodes(id string) protocol.HostInstruction {
	var nodes []string
	for _, name := range slices.Sorted(maps.Keys(d.out.Stored.Nodes)) {
		if d.present(name, d.out.Stored.Nodes[name]) {
			nodes = append(nodes, name)
		}
	}
	return protocol.HostInstruction{
		ID: id, Command: d.scriptWith([]string{"NODES=" + strings.Join(nodes, " ")}, cleanNodesScript(d.flavor())), TimeoutSeconds: removeTimeout}
}
