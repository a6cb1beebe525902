// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeadm decides what the control planes of a cluster that kubeadm has made do for snapshots of etcd and for
// its restore, and makes instructions of that.
//
// It also has the commands that are run on machines that kubeadm makes nodes. It is pure. The caller gives control
// planes their tasks, reads how far they are, and asks again.
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

// script is what a host runs. All values come as arguments.
//
//go:embed etcd.sh
var script string

// Action is what a control plane does, as DroverMachines have it.
type Action = infrav1.TaskAction

// Actions. Each may be repeated after it was interrupted.
const (
	// Snapshot makes a snapshot. It takes the path of its file, and the paths of earlier files, which it removes after.
	Snapshot = infrav1.TaskEtcdSnapshot
	// Upload copies a snapshot to a bucket. It takes the path of its file, and where to.
	Upload = infrav1.TaskEtcdUpload
	// Prepare makes the data of a new etcd of a snapshot, and changes nothing that is in use. It takes the ID of the
	// restore, the file, and from where to fetch it if it is not there.
	Prepare = infrav1.TaskEtcdPrepare
	// Stop stops etcd, API server, controller manager and scheduler. It takes the ID of the restore.
	Stop = infrav1.TaskEtcdStop
	// Resume starts them as they were. It takes the ID of the restore.
	Resume = infrav1.TaskEtcdResume
	// Replace begins etcd anew with what was prepared, and starts the API server. It takes the ID of the restore.
	Replace = infrav1.TaskEtcdReplace
	// Join joins the etcd that was begun anew, without data of its own. It takes the ID of the restore, and the URLs of
	// that etcd.
	Join = infrav1.TaskEtcdJoin
)

// timeouts of the actions, in seconds. The script waits 300 s for each pod that it starts or stops.
var timeouts = map[Action]int{Snapshot: 3600, Upload: 3600, Prepare: 7200, Stop: 900, Resume: 900, Replace: 1800, Join: 3600}

// Folder is where hosts keep snapshots.
const Folder = "/var/lib/drover/etcd/snapshots/"

// verb is an action as the script, IDs and messages have it.
func verb(action Action) string {
	return strings.ToLower(strings.TrimPrefix(string(action), "Etcd"))
}

// Object is a copy of a snapshot in a bucket, and the Secret by which it is reached.
type Object = infrav1.EtcdTaskS3

// flags of the program that copies it. None is a secret.
func flags(o *Object) []string {
	var all []string
	for _, flag := range [][2]string{{"endpoint", o.Endpoint}, {"bucket", o.Bucket}, {"region", o.Region}, {"bucket-lookup", string(o.BucketLookup)}, {"key", o.Key}} {
		if flag[1] != "" {
			all = append(all, "--"+flag[0]+"="+flag[1])
		}
	}
	return all
}

// Bucket is how the host of a task reaches a bucket.
type Bucket struct {
	// Credentials are variables of the instruction. A host reports no value of a variable, and an instruction leaves the
	// host's instructions and journal when it has ended.
	Credentials map[string]string
	// Problem says why there are none, nil if there are. Prepare goes on without: the host may have the file.
	Problem error
}

// Instruction returns what has a host carry out a task. Its ID is the caller's.
//
// A task is not the instruction itself, although both say what a host does once. A task is in the spec of a
// DroverMachine, which may be read by people who must not read Secrets, so it only names the Secret with the
// credentials of a bucket. The controller of DroverMachines alone reads that, when it gives the task to the Host.
func Instruction(task infrav1.MachineTask, bucket Bucket) (protocol.HostInstruction, error) {
	if task.Etcd == nil {
		return protocol.HostInstruction{}, fmt.Errorf("the task %s has nothing of etcd", verb(task.Action))
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

// arguments returns what the script takes after the verb of an action, but for flags.
func arguments(action Action, t *infrav1.EtcdTask) ([]string, error) {
	ofFile := slices.Contains([]Action{Snapshot, Upload, Prepare}, action)
	arguments := []string{t.Of}
	switch {
	case ofFile && !plain(t.File), slices.ContainsFunc(t.Remove, func(name string) bool { return !plain(name) }):
		return nil, fmt.Errorf("the task %s has no name of a file", verb(action))
	case action == Upload && t.S3 == nil:
		return nil, fmt.Errorf("the task %s has no bucket", verb(action))
	case action == Join && len(t.Endpoints) == 0:
		return nil, fmt.Errorf("the host of the etcd that is to be joined reports no address")
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

// plain reports whether a text is the name of a file in a folder.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
