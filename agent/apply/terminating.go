// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// deletionPatience is how long the deletion of a namespace may take before a set with that namespace counts as failed.
const deletionPatience = time.Minute

// reportTerminating reports the namespaces in the set that are being deleted. No objects are applied in these
// namespaces. Once a namespace is gone, the agent creates it again.
func (p *pass) reportTerminating(ctx context.Context, namespaces []item) {
	for _, it := range namespaces {
		if !p.leader.cache.deleting(it.ref.name) || p.failed(it.ref) {
			continue
		}
		var ns corev1.Namespace
		err := p.leader.options.Objects.Whole(ctx, p.leader.catalogue.path(it.ref), &ns)
		switch {
		case notFound(err), err == nil && ns.DeletionTimestamp == nil:
		case err != nil:
			p.fail(ctx, it.ref, err)
		case p.now.Sub(ns.DeletionTimestamp.Time) < deletionPatience:
			p.problem(it.ref, protocol.SetPending, "it is being deleted, and is created again once it is gone")
			p.later(deletionPatience)
		default:
			p.problem(it.ref, protocol.SetFailed, whyTerminating(&ns))
		}
	}
}

// whyTerminating returns a message with the start of a namespace's deletion and the cause of its delay.
func whyTerminating(ns *corev1.Namespace) string {
	var causes []string
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			causes = append(causes, fmt.Sprintf("%s: %s", c.Type, c.Message))
		}
	}
	if len(causes) == 0 {
		causes = []string{"its status does not give a reason"}
	}
	return fmt.Sprintf("it has been terminating since %s and gets no objects (%s): remove what blocks its deletion, or "+
		"remove it from the project",
		ns.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(causes, "; "))
}
