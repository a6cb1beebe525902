// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/status"
)

// lookAgain is the interval between checks for missing rights in a workspace. Regular checks are necessary because
// RoleBindings are not watched.
const lookAgain = 10 * time.Second

// NotPermitted returns the status to set if err was caused by the provisioner's missing rights on the workspace's
// Secrets. The message explains how to grant these rights. NotPermitted returns nil for any other error. Because an
// admission policy that refuses a write returns the same kind of error, NotPermitted tries to read a Secret to
// distinguish the two cases. The Secret does not have to exist.
func NotPermitted(ctx context.Context, live client.Reader, workspace string, err error) *status.Readiness {
	if !apierrors.IsForbidden(err) {
		return nil
	}
	name := types.NamespacedName{Namespace: workspace, Name: "drover-provisioner"}
	if err := live.Get(ctx, name, &corev1.Secret{}); !apierrors.IsForbidden(err) {
		return nil
	}
	return &status.Readiness{
		Stalled: true, Reason: provisionv1.ReasonNotPermitted, Again: lookAgain,
		Message: fmt.Sprintf("the provisioner has no right to the Secrets of namespace %s: bind its account to the "+
			"ClusterRole drover-provisioner-workspace there, with a RoleBinding "+
			"(docs/operations/install.md#the-provisioner)", workspace),
	}
}
