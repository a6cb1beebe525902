// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeadm decides which steps the control plane machines of a kubeadm cluster take for etcd snapshots and
// restores, and translates their tasks into instructions.
//
// It also contains commands for machines whose nodes kubeadm sets up. The package has no side effects. The caller gives
// the machines their tasks, reads the states of the tasks, and calls Decide again.
package kubeadm

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// script is the script that hosts run. All values are passed to the script as arguments.
//
//go:embed etcd.sh
var script string

// Action is the action of a task. The DroverMachine API defines the actions.
type Action = infrav1.TaskAction

// Actions. Each action can be repeated after an interruption.
const (
	// Snapshot is the action that takes a snapshot. Its arguments are the path of the new file, and the paths of earlier
	// files to remove afterward.
	Snapshot = infrav1.TaskEtcdSnapshot
	// Upload is the action that copies a snapshot to a bucket. Its arguments are the path of the snapshot file and the
	// destination.
	Upload = infrav1.TaskEtcdUpload
	// Prepare is the action that creates the data directory of a new etcd from a snapshot. It does not change anything
	// that is in use. Its arguments are the ID of the restore, the snapshot file, and the bucket. If the host does not
	// have the file, it fetches the file from the bucket.
	Prepare = infrav1.TaskEtcdPrepare
	// Stop is the action that stops etcd, the API server, the controller manager and the scheduler. Its argument is the ID
	// of the restore.
	Stop = infrav1.TaskEtcdStop
	// Resume is the action that restarts the stopped components with unchanged data. Its argument is the ID of the
	// restore.
	Resume = infrav1.TaskEtcdResume
	// Replace is the action that starts a new etcd with the prepared data, and then the API server. Its argument is the ID
	// of the restore.
	Replace = infrav1.TaskEtcdReplace
	// Join is the action that makes an etcd member without data join the new etcd. Its arguments are the ID of the
	// restore, and the URLs of the new etcd.
	Join = infrav1.TaskEtcdJoin
)

// timeouts are the timeouts of the actions, in seconds. The script waits 300 s for each pod that it starts or stops.
var timeouts = map[Action]int{Snapshot: 3600, Upload: 3600, Prepare: 7200, Stop: 900, Resume: 900, Replace: 1800, Join: 3600}

// Folder is the directory in which hosts store snapshots.
const Folder = "/var/lib/drover/etcd/snapshots/"

// verb returns the name of an action as used in the script, in IDs and in messages.
func verb(action Action) string {
	return strings.ToLower(strings.TrimPrefix(string(action), "Etcd"))
}

// Object is a copy of a snapshot in a bucket. It names the Secret with the credentials.
type Object = infrav1.EtcdTaskS3

// flags returns the flags of the command that copies a snapshot. No flag contains a secret.
func flags(o *Object) []string {
	var all []string
	for _, flag := range [][2]string{{"endpoint", o.Endpoint}, {"bucket", o.Bucket}, {"region", o.Region}, {"bucket-lookup", string(o.BucketLookup)}, {"key", o.Key}} {
		if flag[1] != "" {
			all = append(all, "--"+flag[0]+"="+flag[1])
		}
	}
	return all
}

// Bucket specifies how the host that carries out a task reaches a bucket.
type Bucket struct {
	// Credentials are environment variables for the instruction. A host never reports the values of variables. When an
	// instruction has ended, it is removed from the host's instructions and journal.
	Credentials map[string]string
	// Problem explains why there are no credentials. It is nil if there are credentials. Prepare continues despite a
	// Problem, because the host may already have the snapshot.
	Problem error
}

// Instruction returns the instruction for a task. The caller sets the instruction's ID.
//
// Tasks and instructions both describe an action that a host carries out once. They are separate because a task is part
// of a DroverMachine's spec, which can also be read by users who must not read Secrets. A task therefore contains only
// the name of the Secret with the bucket's credentials. The DroverMachine controller reads that Secret when it gives
// the instruction to the Host.
func Instruction(task infrav1.MachineTask, bucket Bucket) (protocol.HostInstruction, error) {
	if task.Etcd == nil {
		return protocol.HostInstruction{}, fmt.Errorf("the task %s has no field etcd", verb(task.Action))
	}
	if bucket.Problem != nil && task.Action != Prepare {
		return protocol.HostInstruction{}, bucket.Problem
	}
	arguments, err := arguments(task.Action, task.Etcd)
	if err != nil {
		return protocol.HostInstruction{}, err
	}
	instruction := protocol.HostInstruction{TimeoutSeconds: timeouts[task.Action]}
	switch {
	case bucket.Problem != nil:
		arguments = append(arguments, "--unreachable", bucket.Problem.Error())
	case task.Etcd.S3 != nil && (task.Action == Upload || task.Action == Prepare):
		arguments = append(arguments, flags(task.Etcd.S3)...)
		instruction.Env = maps.Clone(bucket.Credentials)
	}
	instruction.Command = append([]string{"/bin/sh", "-c", script, "etcd", verb(task.Action)}, arguments...)
	return instruction, nil
}

// arguments returns the script's arguments for an action. They follow the verb, and do not include the flags.
func arguments(action Action, t *infrav1.EtcdTask) ([]string, error) {
	ofFile := slices.Contains([]Action{Snapshot, Upload, Prepare}, action)
	arguments := []string{t.Of}
	switch {
	case ofFile && !plain(t.File), slices.ContainsFunc(t.Remove, func(name string) bool { return !plain(name) }):
		return nil, fmt.Errorf("the task %s does not name a file", verb(action))
	case action == Upload && t.S3 == nil:
		return nil, fmt.Errorf("the task %s has no bucket", verb(action))
	case action == Join && len(t.Endpoints) == 0:
		return nil, fmt.Errorf("the host with the etcd to join reports no address")
	case action == Snapshot:
		arguments = []string{Folder + t.File}
		for _, name := range t.Remove {
			arguments = append(arguments, Folder+name)
		}
	case action == Upload:
		arguments = []string{Folder + t.File}
	case action == Prepare:
		arguments = append(arguments, Folder+t.File)
	case action == Join:
		arguments = append(arguments, t.Endpoints...)
	}
	return arguments, nil
}

// plain reports whether a string is a file name without a directory.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
