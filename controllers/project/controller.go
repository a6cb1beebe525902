// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package project reconciles Project: its members have its namespaces, its limits and copies of its secrets, and all members the guards of projects.
package project

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/secrets"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/tenancy"
)

// Kinds of the keys under which projects and copies of their secrets are delivered.
const (
	Kind        = "project"
	KindSecrets = "secrets"
)

// Deliveries brings sets to members. delivery.Store is one.
type Deliveries interface {
	Replace(delivery.Key, map[types.NamespacedName]*delivery.Set)
	Outcomes(id string, members []types.NamespacedName) []delivery.Outcome
	OnResult(kind string, f func(delivery.Key))
	Forget(types.NamespacedName)
	// Changed has the delivery store look at what is known of a member.
	Changed(types.NamespacedName)
}

// Reconciler reconciles Projects. Register adds it to a manager.
type Reconciler struct {
	// Client reads from a cache with the indexes of package reference, and writes.
	Client client.Client
	// Secrets reads those that are labelled for a project. secrets.Reader is one.
	Secrets    client.Reader
	Recorder   events.EventRecorder
	Deliveries Deliveries
	Now        func() time.Time

	written status.Written
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=projects/status,verbs=get;update;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one project to its members, and writes into its status how far it has got.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	project := &v1.Project{}
	key, secretsKey := keys(req.NamespacedName)
	if err := r.Client.Get(ctx, req.NamespacedName, project); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read %s: %w", key, err)
	} else if err != nil || !project.DeletionTimestamp.IsZero() {
		r.Deliveries.Replace(secretsKey, nil)
		r.Deliveries.Replace(key, nil)
		r.written.Forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	stale := r.written.Missing(project)
	p, err := r.plan(ctx, project)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, p.projects)
	r.Deliveries.Replace(secretsKey, p.secrets)
	if stale {
		return ctrl.Result{}, nil // the event of what is missing brings us back
	}
	return r.writeStatus(ctx, project, p)
}

// keys are those of a project and of the copies of its secrets.
func keys(project types.NamespacedName) (delivery.Key, delivery.Key) {
	key := delivery.Key{Kind: Kind, Namespace: project.Namespace, Name: project.Name}
	secrets := key
	secrets.Kind = KindSecrets
	return key, secrets
}

// plan is what a reconcile of a project decided.
type plan struct {
	members  []types.NamespacedName
	projects map[types.NamespacedName]*delivery.Set
	secrets  map[types.NamespacedName]*delivery.Set
	// problems keep it, or some of it, from being delivered; the most important first.
	problems []index.Problem
}

// fail records a problem that only a person can fix.
func (p *plan) fail(reason, message string) {
	p.problems = append(p.problems, index.Problem{Reason: reason, Message: message, Stalled: true})
}

// plan gathers and decides. An error means that reading failed. A fault of the project is a problem instead, so that it takes away what was there.
func (r *Reconciler) plan(ctx context.Context, project *v1.Project) (plan, error) {
	p := plan{projects: map[types.NamespacedName]*delivery.Set{}, secrets: map[types.NamespacedName]*delivery.Set{}}
	members, problem, err := index.Members(ctx, r.Client, project.Namespace, project.Spec.ClusterTarget)
	if err != nil {
		return plan{}, err
	}
	if p.members = members; problem != nil {
		p.problems = append(p.problems, *problem)
		return p, nil
	}
	return p, errors.Join(r.planProject(ctx, project, &p), r.planSecrets(ctx, project, &p))
}

// planSecrets makes the set of copies. A project without secrets has none.
func (r *Reconciler) planSecrets(ctx context.Context, project *v1.Project, p *plan) error {
	sources, err := r.sources(ctx, project, p)
	if err != nil {
		return err
	}
	content, refused, err := tenancy.Secrets(project, sources)
	if err != nil {
		return err
	}
	for _, refusal := range refused {
		p.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %s", refusal.Name, refusal.Message))
	}
	if len(content.PerNamespace.Templates) == 0 {
		return nil
	}
	set, err := delivery.NewSet(tenancy.SecretsSet(project.Name), nil, content)
	if err != nil {
		p.fail(v1.ReasonDeliveryFailed, err.Error())
		return nil
	}
	for _, member := range p.members {
		p.secrets[member] = set
	}
	return nil
}

// sources returns the Secrets that are labelled for a project, with the content of those that are copied.
func (r *Reconciler) sources(ctx context.Context, project *v1.Project, p *plan) ([]corev1.Secret, error) {
	var labelled corev1.SecretList
	if err := r.Secrets.List(ctx, &labelled, client.InNamespace(project.Namespace), client.MatchingLabels{v1.LabelProject: project.Name}); err != nil {
		return nil, fmt.Errorf("list secrets of project %s/%s: %w", project.Namespace, project.Name, err)
	}
	slices.SortFunc(labelled.Items, func(a, b corev1.Secret) int { return cmp.Compare(a.Name, b.Name) })
	sources := labelled.Items[:0]
	for _, secret := range labelled.Items {
		tooLarge := (*secrets.TooLargeError)(nil)
		var err error
		if tenancy.Uncopied(&secret) == "" {
			err = r.Secrets.Get(ctx, client.ObjectKeyFromObject(&secret), &secret)
		}
		switch {
		case errors.As(err, &tooLarge):
			p.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %v", secret.Name, tooLarge))
		case err == nil:
			sources = append(sources, secret)
		case !apierrors.IsNotFound(err): // one that has gone brings us back
			return nil, fmt.Errorf("read secret %s/%s: %w", project.Namespace, secret.Name, err)
		}
	}
	return sources, nil
}
