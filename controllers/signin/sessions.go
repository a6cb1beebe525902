// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
	"github.com/drover-dev/drover/internal/signin/session"
)

// kept is how long the Secret of a session or script token is kept after its end.
const kept = time.Minute

// Sessions deletes sessions and script tokens that have ended. It runs on the leader.
type Sessions struct {
	Client client.Client
	// Namespace is the manager's namespace. It contains the Secrets of sessions and tokens.
	Namespace string
	Now       func() time.Time
}

// Ends reports whether an object is the Secret of a session or script token. The label alone does not prove this.
func (s *Sessions) Ends(o client.Object) bool {
	prefixes := map[string]string{v1.SecretKindSession: session.Prefix, v1.SecretKindToken: scripttoken.Prefix}
	prefix, known := prefixes[o.GetLabels()[v1.LabelSecretKind]]
	return known && o.GetNamespace() == s.Namespace && strings.HasPrefix(o.GetName(), prefix)
}

// Reconcile deletes a session or script token if it has ended.
func (s *Sessions) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := s.Client.Get(ctx, req.NamespacedName, secret); err != nil || !s.Ends(secret) {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if left := session.Ends(secret).Add(kept).Sub(s.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	// a session that was refreshed in the meantime has not ended
	if err := owned.Delete(ctx, s.Client, secret); err != nil {
		return ctrl.Result{}, fmt.Errorf("delete %s: %w", req.NamespacedName, err)
	}
	return ctrl.Result{}, nil
}
