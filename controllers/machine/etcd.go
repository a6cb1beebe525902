// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/kubeadmetcd"
	"github.com/drover-dev/drover/internal/protocol"
)

// etcd returns what makes the instruction of an action of etcd.
func etcd(action kubeadmetcd.Action) func(taskInput, infrav1.MachineTask) (protocol.HostInstruction, error) {
	return func(_ taskInput, task infrav1.MachineTask) (protocol.HostInstruction, error) {
		return kubeadmetcd.Task{Action: action, Of: task.Etcd.Of, File: task.Etcd.File, Endpoints: task.Etcd.Endpoints}.Instruction()
	}
}
