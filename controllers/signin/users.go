// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/password"
	"github.com/drover-dev/drover/internal/status"
)

// Users records in the status of each User whether the user can sign in. It runs on the leader.
type Users struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Namespace is the namespace that contains the Secrets with the password hashes.
	Namespace string
	Now       func() time.Time
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=users/status,verbs=get;update;patch

// Handler enqueues the User that a password Secret belongs to.
func (u *Users) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		name := o.GetName()
		if o.GetNamespace() != u.Namespace || len(name) <= len(v1.UserSecretPrefix) || name[:len(v1.UserSecretPrefix)] != v1.UserSecretPrefix {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name[len(v1.UserSecretPrefix):]}}}
	})
}

// Reconcile writes the status of one User.
func (u *Users) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	user := &v1.User{}
	if err := u.Client.Get(ctx, req.NamespacedName, user); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	password := types.NamespacedName{Namespace: u.Namespace, Name: v1.UserSecretPrefix + user.Name}
	secret, err := owned.ReadSecret(ctx, u.Client, password)
	if err != nil {
		return ctrl.Result{}, err
	}
	update := status.Begin(user)
	setReady(&user.Status.Conditions, decide(user, secret), u.Now())
	user.Status.ObservedGeneration, user.Status.Principal = user.Generation, cmp.Or(user.Spec.Principal, v1.PrincipalPrefixLocal+user.Name)
	return ctrl.Result{}, update.Commit(ctx, u.Client, u.Recorder)
}

// setReady sets the Ready condition. It also sets Stalled while Ready is False for a reason that requires manual
// action. A missing object is not such a reason, because it may be created soon.
func setReady(conditions *[]metav1.Condition, ready metav1.Condition, now time.Time) {
	ready.LastTransitionTime = metav1.NewTime(now)
	meta.SetStatusCondition(conditions, ready)
	if ready.Reason != v1.ReasonPasswordInvalid && ready.Reason != v1.ReasonInvalid {
		meta.RemoveStatusCondition(conditions, v1.ConditionStalled)
		return
	}
	ready.Type, ready.Status = v1.ConditionStalled, metav1.ConditionTrue
	meta.SetStatusCondition(conditions, ready)
}

// decide returns a User's Ready condition. secret contains the user's password hash, and is nil if the Secret does not
// exist.
func decide(user *v1.User, secret *corev1.Secret) metav1.Condition {
	c := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: user.Generation}
	switch {
	case user.Spec.Disabled:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1.ReasonDisabled, "No login and no token of the user is accepted"
	case user.Spec.Principal != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1.ReasonSignsInElsewhere, "The user signs in at the AuthProvider of spec.principal; spec.disabled refuses them"
	case secret == nil:
		c.Reason, c.Message = v1.ReasonPasswordMissing, "The user has no password: set one with kubectl drover user password "+user.Name
	case !account.HoldsPassword(secret, user) || password.Valid(string(secret.Data[v1.UserSecretKey])) != nil:
		c.Reason, c.Message = v1.ReasonPasswordInvalid, "Secret "+secret.Name+" holds no argon2id hash within the bounds, lacks the label, or is of another User of this name: set a password with kubectl drover user password "+user.Name
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1.ReasonPasswordSet, "The user can sign in"
	}
	return c
}
