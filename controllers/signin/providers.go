// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/status"
)

// Limits on the interval between checks of a provider that does not respond. Within these limits, the interval is the
// time since the provider stopped responding.
const (
	checkEvery = 5 * time.Minute
	checkSoon  = 10 * time.Second
	checkLimit = 15 * time.Second
)

// Providers records in the status of each AuthProvider whether the provider responds. It runs on the leader.
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
	condition := ready(p, failed)
	setReady(&p.Status.Conditions, condition, r.Now())
	kind, _ := r.Connectors.TypeOf(p) // check returns the same error
	p.Status.ObservedGeneration, p.Status.Type = p.Generation, kind.Name
	return ctrl.Result{RequeueAfter: checkAgain(p, failed, r.Now())}, update.Commit(ctx, r.Client, r.Recorder)
}

// checkAgain returns the time after which a provider is checked again. Zero means never.
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
		// The read comes from a cache. If it fails, the provider is still checked again later.
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

func ready(p *v1.AuthProvider, failed error) metav1.Condition {
	const most = 1024
	c := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: p.Generation}
	switch {
	case p.Spec.Disabled:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1.ReasonDisabled, "No login and no token of the provider's users is accepted"
		return c
	case failed == nil:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1.ReasonReachable, "The provider answers"
		return c
	case errors.Is(failed, upstream.ErrSecret):
		c.Reason = v1.ReasonSecretMissing
	case errors.Is(failed, upstream.ErrInvalid):
		c.Reason = v1.ReasonInvalid
	default:
		c.Reason = v1.ReasonUnreachable
	}
	// A provider can send arbitrary text, and kubectl prints the text to the user's terminal.
	c.Message = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, failed.Error())
	if len(c.Message) > most {
		c.Message = strings.ToValidUTF8(c.Message[:most], "")
	}
	return c
}
