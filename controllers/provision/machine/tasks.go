// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

// soon is the delay before a machine is checked again after its status has been written.
const soon = 100 * time.Millisecond

// maxTaskMessage is the maximum length of a failed task's message in the status, in bytes.
const maxTaskMessage = 2048

// taskInput holds everything that a task's instruction depends on, except for the task itself.
type taskInput struct {
	machine *infrav1.DroverMachine
	host    *v1.Host
	// buckets are the buckets that tasks copy files to or from, by task ID.
	buckets map[string]kubeadm.Bucket
}

// actions maps each action to a function that translates a task to an instruction. The functions have no side effects,
// and do not set the instruction's ID. If a function returns an error, the task fails.
var actions = map[infrav1.TaskAction]func(taskInput, infrav1.MachineTask) (protocol.HostInstruction, error){
	infrav1.TaskUpdate: update,

	infrav1.TaskEtcdSnapshot: etcd,
	infrav1.TaskEtcdUpload:   etcd,
	infrav1.TaskEtcdPrepare:  etcd,
	infrav1.TaskEtcdStop:     etcd,
	infrav1.TaskEtcdResume:   etcd,
	infrav1.TaskEtcdReplace:  etcd,
	infrav1.TaskEtcdJoin:     etcd,
}

// work gives a machine's tasks to the Host after the bootstrap, and reports the progress of the tasks.
//
// A task is written to the status before its instruction is given to the Host, and the task's outcome is written to the
// status before the instruction is removed. If the provisioner is killed in between, no instruction is left behind, and
// a task that has ended is not repeated. In addition, the Host's journal ensures that an instruction runs only once.
func (r *Reconciler) work(ctx context.Context, in *input, v status.Readiness) (status.Readiness, error) {
	machine := in.machine
	if len(machine.Spec.Tasks) == 0 && len(machine.Status.Tasks) == 0 {
		return v, nil
	}
	has, version, err := r.Instructions(ctx, in.host)
	switch {
	case errors.Is(err, hosts.ErrForeignInstructions):
		return foreignInstructions(err), nil
	case err != nil || has == nil:
		return v, err // deleted instructions are not created again; the Host reports that they are gone
	}
	buckets, err := r.buckets(ctx, machine)
	if err != nil {
		return status.Readiness{}, err
	}
	want, after := schedule(taskInput{machine, in.host, buckets}, *has, version)
	if !reflect.DeepEqual(want, *has) {
		if _, err = r.ReplaceInstructions(ctx, in.host, consumer(machine), want, version); err != nil {
			return status.Readiness{}, err
		}
	}
	for _, task := range after {
		if task.State.Ended() && stateOf(machine.Status.Tasks, task.ID).State != task.State {
			in.update.Event(status.Event{Warning: task.State == infrav1.TaskFailed, Reason: "Task" + string(task.State), Action: "Task",
				Message: protocol.Cut(fmt.Sprintf("task %s on Host %s: %s", task.ID, in.host.Name, cmp.Or(task.Message, "done")), 512)})
		}
	}
	if !slices.Equal(after, machine.Status.Tasks) {
		v.Again = soon // the status has been written, so the Host's instructions can now be updated
	}
	machine.Status.Tasks = after
	return v, nil
}

// workOn continues with tasks while the machine is paused in Cluster API. This is needed because an etcd restore pauses
// the cluster but is itself carried out by tasks. workOn returns the time until the next check.
func (r *Reconciler) workOn(ctx context.Context, in *input) (time.Duration, error) {
	v := status.Readiness{Again: lookAgain}
	if !in.machine.DeletionTimestamp.IsZero() || !provisioned(in.machine) || in.host == nil || !hosts.TakenBy(in.host, consumer(in.machine)) || !in.host.DeletionTimestamp.IsZero() {
		return v.Again, nil
	}
	v, err := r.work(ctx, in, v)
	setTasksSucceeded(in.machine)
	return v.Again, err
}

// schedule returns a Host's instructions, including instructions for the unfinished tasks, and the progress of each
// task. It does not change the bootstrap instructions or any other existing instructions. It has no side effects.
func schedule(in taskInput, has protocol.HostInstructions, version string) (protocol.HostInstructions, []infrav1.MachineTaskStatus) {
	present, host := map[string]int{}, progress.OfHost(in.host, version)
	var all []protocol.HostInstruction
	for i, instruction := range has.Instructions {
		if present[instruction.ID] = i; !strings.HasPrefix(instruction.ID, protocol.HostTaskPrefix) {
			all = append(all, instruction)
		}
	}
	var after []infrav1.MachineTaskStatus
	for _, task := range in.machine.Spec.Tasks {
		state := stateOf(in.machine.Status.Tasks, task.ID)
		if i, given := present[protocol.HostTaskPrefix+task.ID]; state.State != "" && !state.State.Ended() {
			instruction, err := protocol.HostInstruction{}, error(nil)
			if given {
				instruction, state = has.Instructions[i], observe(state, host, i)
			} else if instruction, err = actions[task.Action](in, task); err != nil {
				state.State, state.Message = infrav1.TaskFailed, protocol.Cut(err.Error(), maxTaskMessage)
			}
			if instruction.ID = protocol.HostTaskPrefix + task.ID; err == nil {
				all = append(all, instruction)
			}
		}
		state.ID, state.State = task.ID, cmp.Or(state.State, infrav1.TaskPending)
		after = append(after, state)
	}
	has.Instructions = all
	return has, after
}

// stateOf returns a task's status. If the task has no status, the returned state is empty.
func stateOf(all []infrav1.MachineTaskStatus, id string) infrav1.MachineTaskStatus {
	for _, task := range all {
		if task.ID == id {
			return task
		}
	}
	return infrav1.MachineTaskStatus{}
}

// observe returns the progress of a task. i is the index of the task's instruction in the Host's instructions.
func observe(before infrav1.MachineTaskStatus, host progress.Host, i int) infrav1.MachineTaskStatus {
	after := before
	switch {
	case host.State == progress.None:
	case host.Done > i:
		after.State, after.Message = infrav1.TaskSucceeded, ""
	case host.Instruction != protocol.HostTaskPrefix+before.ID:
	case host.State == progress.Failed:
		after.State, after.Message = infrav1.TaskFailed, protocol.Cut(host.Message, 512)
		if host.Output != "" {
			after.Message += "\n" + lastLines(host.Output, maxTaskMessage-1-len(after.Message))
		}
	default:
		after.State = infrav1.TaskRunning
	}
	return after
}

// lastLines returns the last lines of text. The result is at most n bytes long.
func lastLines(text string, n int) string {
	for text = strings.TrimSpace(text); len(text) > n; {
		_, rest, more := strings.Cut(text, "\n")
		if !more {
			return protocol.Cut(text, n)
		}
		text = rest
	}
	return text
}

// isAtWork reports whether a Host is carrying out its instructions. It also returns true if only a task has failed on
// the Host.
func isAtWork(host *v1.Host) bool {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	switch {
	case ready == nil:
		return false
	case ready.Reason == v1.ReasonInstructionFailed, ready.Reason == v1.ReasonInterrupted:
		return host.Status.Progress != nil && strings.HasPrefix(host.Status.Progress.Instruction, protocol.HostTaskPrefix)
	}
	return ready.Reason == v1.ReasonInstalling
}

// setTasksSucceeded sets a condition that summarizes a machine's tasks. The condition exists only while the machine has
// tasks.
func setTasksSucceeded(machine *infrav1.DroverMachine) {
	condition := metav1.Condition{Type: infrav1.ConditionTasksSucceeded, Status: metav1.ConditionTrue, Reason: infrav1.ReasonTasksSucceeded, Message: "all tasks have succeeded", ObservedGeneration: machine.Generation}
	for _, task := range slices.Backward(machine.Status.Tasks) {
		// if several tasks have failed, the message names the first failed task
		switch {
		case task.State == infrav1.TaskFailed:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, infrav1.ReasonTaskFailed, fmt.Sprintf("task %s failed and is not repeated: %s", task.ID, task.Message)
		case !task.State.Ended() && condition.Reason != infrav1.ReasonTaskFailed:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, infrav1.ReasonTaskRunning, fmt.Sprintf("task %s: %s", task.ID, task.State)
		}
	}
	if len(machine.Status.Tasks) == 0 {
		meta.RemoveStatusCondition(&machine.Status.Conditions, condition.Type)
		return
	}
	meta.SetStatusCondition(&machine.Status.Conditions, condition)
}
