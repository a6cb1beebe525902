// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeNames are the names of the member's simulated nodes. The nodes are simulated because real nodes require root.
var nodeNames = []string{"node-1", "node-2", "node-3"}

// startNodes starts the program that simulates the member's nodes.
func (d *demo) startNodes(ctx context.Context) (string, error) {
	return d.keepOrStart(ctx, program{
		name:       nodes,
		args:       append([]string{"--kubeconfig=" + d.files.kubeconfig(member)}, nodeNames...),
		credential: func(context.Context) error { return nil }, // the program acts as the member's administrator
		healthy: func(ctx context.Context) error {
			for _, name := range nodeNames {
				if err := d.member.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}); err != nil {
					return fmt.Errorf("read node %s: %w", name, err)
				}
			}
			return nil
		},
	})
}
