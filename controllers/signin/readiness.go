// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/status"
)

// Users writes to the status of each User whether the user can sign in. It runs on the leader.
type Users struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Namespace is the namespace that contains the Secrets with the password hashes.
	Namespace string
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
	user.Status.Principal = cmp.Or(user.Spec.Principal, v1.PrincipalPrefixLocal+user.Name)
	decide(user, secret).Write(user.Generation, &user.Status.ObservedGeneration, &user.Status.Conditions)
	return ctrl.Result{}, update.Commit(ctx, u.Client, u.Recorder)
}

// decide returns the readiness of a User. A User is ready if the user can sign in. secret contains the user's password
// hash, and is nil if it does not exist. A missing password does not stall the User, because the Secret may be created
// soon.
func decide(user *v1.User, secret *corev1.Secret) status.Readiness {
	switch {
	case user.Spec.Disabled:
		return status.Readiness{Ready: true, Reason: v1.ReasonDisabled, Message: "No login and no token of the user is accepted"}
	case user.Spec.Principal != "":
		return status.Readiness{
			Ready: true, Reason: v1.ReasonSignsInElsewhere,
			Message: "The user signs in at the AuthProvider of spec.principal; spec.disabled refuses them",
		}
	case secret == nil:
		return status.Readiness{
			Reason:  v1.ReasonPasswordMissing,
			Message: "The user has no password: set one with kubectl drover user password " + user.Name,
		}
	case !account.HoldsPassword(secret, user) || password.Valid(string(secret.Data[v1.UserSecretKey])) != nil:
		return status.Readiness{
			Stalled: true, Reason: v1.ReasonPasswordInvalid,
			Message: "Secret " + secret.Name + " holds no argon2id hash within the bounds, lacks the label, or is of another " +
				"User of this name: set a password with kubectl drover user password " + user.Name,
		}
	}
	return status.Readiness{Ready: true, Reason: v1.ReasonPasswordSet, Message: "The user can sign in"}
}

// Limits on the interval between checks of a provider that does not respond. Within these limits, the interval equals
// the time since the provider stopped responding.
const (
	checkEvery = 5 * time.Minute
	checkSoon  = 10 * time.Second
	checkLimit = 15 * time.Second
)

// Providers writes to the status of each AuthProvider whether the provider responds. It runs on the leader.
type Providers struct {
	Client     client.Client
	Recorder   events.EventRecorder
	Connectors *upstream.Connectors
	Now        func() time.Time
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=authproviders/status,verbs=get;update;patch

// Reconcile checks one provider and writes the status.
func (r *Providers) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1.AuthProvider{}
	if err := r.Client.Get(ctx, req.NamespacedName, p); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.Connectors.Forget(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var failed error
	if !p.Spec.Disabled {
		failed = r.check(ctx, p)
	}
	update := status.Begin(p)
	checked := ready(p, failed)
	checked.At = r.Now()
	checked.Write(p.Generation, &p.Status.ObservedGeneration, &p.Status.Conditions)
	kind, _ := r.Connectors.TypeOf(p) // check returns the same error
	p.Status.Type = kind.Name
	return ctrl.Result{RequeueAfter: checkAgain(p, failed, r.Now())}, update.Commit(ctx, r.Client, r.Recorder)
}

// checkAgain returns the time until a provider is checked again, or zero if it is not checked again.
func checkAgain(p *v1.AuthProvider, failed error, now time.Time) time.Duration {
	switch {
	case p.Spec.Disabled:
		return 0
	case failed != nil: // the interval doubles, even if the leader changes
		since := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady).LastTransitionTime.Time
		return min(max(now.Sub(since), checkSoon), checkEvery)
	}
	return checkEvery
}

// Handler enqueues the AuthProviders that refer to a Secret.
func (r *Providers) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) (requests []reconcile.Request) {
		var all v1.AuthProviderList
		// The read uses a cache. If it fails, the provider is still checked again later.
		if secret.GetNamespace() != r.Connectors.Namespace || secret.GetLabels()[v1.LabelSecretKind] != v1.SecretKindProvider || r.Client.List(ctx, &all) != nil {
			return nil
		}
		for i := range all.Items {
			kind, err := r.Connectors.TypeOf(&all.Items[i])
			if err != nil {
				continue
			}
			if named := kind.Secret(&all.Items[i]); named != nil && named.Name == secret.GetName() {
				requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: all.Items[i].Name}})
			}
		}
		return requests
	})
}

// check returns the reason why a provider cannot be used, or nil if it can be used.
func (r *Providers) check(ctx context.Context, p *v1.AuthProvider) error {
	made, err := r.Connectors.Get(ctx, p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	return made.Check(ctx)
}

// ready returns the readiness of a provider. Only a user can fix an invalid provider.
func ready(p *v1.AuthProvider, failed error) status.Readiness {
	reason := v1.ReasonUnreachable
	switch {
	case p.Spec.Disabled:
		return status.Readiness{
			Ready: true, Reason: v1.ReasonDisabled, Message: "No login and no token of the provider's users is accepted",
		}
	case failed == nil:
		return status.Readiness{Ready: true, Reason: v1.ReasonReachable, Message: "The provider answers"}
	case errors.Is(failed, upstream.ErrSecret):
		reason = v1.ReasonSecretMissing
	case errors.Is(failed, upstream.ErrInvalid):
		reason = v1.ReasonInvalid
	}
	// A provider can send arbitrary text, and kubectl prints the text to the user's terminal.
	message := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, failed.Error())
	return status.Readiness{Stalled: reason == v1.ReasonInvalid, Reason: reason, Message: message}
}
