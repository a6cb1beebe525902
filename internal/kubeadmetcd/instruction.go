// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeadmetcd decides what the control planes of a cluster that kubeadm has made do for snapshots of etcd and for its restore, and renders that.
//
// It is pure. The caller gives control planes their tasks, reads how far they are, and asks again.
package kubeadmetcd

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/drover-dev/drover/internal/protocol"
)

// script is what a host runs. All values come as arguments.
//
//go:embed etcd.sh
var script string

// Action is what a control plane does.
type Action string

// Actions. Each may be repeated after it was interrupted.
const (
	// Snapshot makes a snapshot. It takes the path of its file.
	Snapshot Action = "snapshot"
	// Prepare makes the data of a new etcd of a snapshot, and changes nothing that is in use. It takes the ID of the restore and the file.
	Prepare Action = "prepare"
	// Stop stops etcd, API server, controller manager and scheduler. It takes the ID of the restore.
	Stop Action = "stop"
	// Resume starts them as they were. It takes the ID of the restore.
	Resume Action = "resume"
	// Replace begins etcd anew with what was prepared, and starts the API server. It takes the ID of the restore.
	Replace Action = "replace"
	// Join joins the etcd that was begun anew, without data of its own. It takes the ID of the restore, and the URLs of that etcd.
	Join Action = "join"
)

// timeouts of the actions, in seconds. The script waits 300 s for each pod that it starts or stops.
var timeouts = map[Action]int{Snapshot: 3600, Prepare: 3600, Stop: 900, Resume: 900, Replace: 1800, Join: 3600}

// Folder is where hosts keep snapshots.
const Folder = "/var/lib/drover/etcd/snapshots/"

// Instruction returns what has a host carry out a task. Its ID is the caller's.
func (t Task) Instruction() (protocol.HostInstruction, error) {
	arguments := []string{t.Of}
	switch {
	case (t.Action == Snapshot || t.Action == Prepare) && (t.File == "" || strings.ContainsAny(t.File, "/\x00")):
		return protocol.HostInstruction{}, fmt.Errorf("the task %s has no name of a file", t.Action)
	case t.Action == Join && len(t.Endpoints) == 0:
		return protocol.HostInstruction{}, fmt.Errorf("the host of the etcd that is to be joined reports no address")
	case t.Action == Snapshot:
		arguments = []string{Folder + t.File}
	case t.Action == Prepare:
		arguments = append(arguments, Folder+t.File)
	case t.Action == Join:
		arguments = append(arguments, t.Endpoints...)
	}
	return protocol.HostInstruction{Command: append([]string{"/bin/sh", "-c", script, "etcd", string(t.Action)}, arguments...), TimeoutSeconds: timeouts[t.Action]}, nil
}
