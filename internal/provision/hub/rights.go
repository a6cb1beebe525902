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
)

// LookAgain is the interval at which a workspace without the necessary rights is checked again. RoleBindings are not
// watched.
const LookAgain = 10 * time.Second

// NotPermitted returns instructions for granting the provisioner its rights to a workspace's Secrets if err is the
// error of a request that failed because of missing rights. It returns "" for any other error. A policy that refuses a
// write gives the same kind of error, so the function reads a Secret to tell them apart. It does not matter whether
// that Secret exists.
func NotPermitted(ctx context.Context, live client.Reader, workspace string, err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	name := types.NamespacedName{Namespace: workspace, Name: "drover-provisioner"}
	if err := live.Get(ctx, name, &corev1.Secret{}); !apierrors.IsForbidden(err) {
		return ""
	}
	return fmt.Sprintf("the provisioner has no right to the Secrets of namespace %s: bind its account to the ClusterRole "+
		"drover-provisioner-workspace there, with a RoleBinding (docs/operations/install.md#the-provisioner)", workspace)
}
