// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
)

// update returns the instruction for the Update action.
func update(in taskInput, task infrav1.MachineTask) (protocol.HostInstruction, error) {
	if in.machine.Spec.InPlaceUpdate == nil {
		return protocol.HostInstruction{}, errors.New("spec.inPlaceUpdate of the machine no longer has an installer")
	}
	return kubeadm.Update(*task.Update, in.machine.Spec.InPlaceUpdate.Installer), nil
}
