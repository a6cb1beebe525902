// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package project reconciles Project.
//
// It delivers a project's namespaces, limits and copies of Secrets to members. It also delivers the policies that guard
// projects to all members.
package project

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/tenancy"
)

// Deliverer delivers sets and returns the set that a member should keep. The delivery store implements it.
type Deliverer interface {
	delivery.Deliverer
	Kept(id string, member types.NamespacedName) *set.Set
}

// Reconciler reconciles Projects.
type Reconciler struct {
	// Client reads from a cache with the indexes from package index.
	status.Output
	// Secrets reads the Secrets that are labeled for a project, for example with index.SecretReader.
	Secrets    client.Reader
	Deliveries Deliverer

	written status.Written[*v1.Project]
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=projects/status,verbs=get;update;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one project to its members, and writes the progress to the project's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key, secretsKey := keys(req.NamespacedName)
	project, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &v1.Project{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found || !project.DeletionTimestamp.IsZero() {
		r.Deliveries.Replace(secretsKey, nil)
		r.Deliveries.Replace(key, nil)
		return ctrl.Result{}, nil
	}
	d, err := r.decide(ctx, project)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, d.projects)
	r.Deliveries.Replace(secretsKey, d.secrets)
	return r.writeStatus(ctx, project, d)
}

// keys returns the delivery keys for a project and for the copies of the project's Secrets.
func keys(project types.NamespacedName) (delivery.Key, delivery.Key) {
	key := func(kind string) delivery.Key {
		return delivery.Key{Kind: kind, Namespace: project.Namespace, Name: project.Name}
	}
	return key(set.Project), key(set.Secrets)
}

// decision is the result of reconciling a project.
type decision struct {
	members  []types.NamespacedName
	projects map[types.NamespacedName]*set.Set
	secrets  map[types.NamespacedName]*set.Set
	// held contains the members that receive no copies of Secrets until the guards are applied. It maps the name of a
	// member's Cluster to the outcome of delivering the guards to the member.
	held map[string]delivery.Outcome
	// problems prevent all or part of the project from being delivered. The most important problem comes first.
	problems []index.Problem
}

// fail records a problem that requires action by a user.
func (d *decision) fail(reason, message string) {
	d.problems = append(d.problems, index.Problem{Reason: reason, Message: message, Stalled: true})
}

// decide reads everything that the project depends on and makes a decision. It returns an error only if an object
// cannot be read. A mistake in the project becomes one of the decision's problems, and the project's objects are then
// removed from members.
func (r *Reconciler) decide(ctx context.Context, project *v1.Project) (decision, error) {
	d := decision{projects: map[types.NamespacedName]*set.Set{}, secrets: map[types.NamespacedName]*set.Set{}}
	members, problem, err := index.Members(ctx, r.Client, project.Namespace, project.Spec.ClusterTarget)
	if err != nil {
		return decision{}, err
	}
	if d.members = members; problem != nil {
		d.problems = append(d.problems, *problem)
		return d, nil
	}
	return d, errors.Join(r.decideProject(ctx, project, &d), r.decideSecrets(ctx, project, &d))
}

// decideSecrets builds the set with the copies of Secrets. A project without Secrets has no such set.
func (r *Reconciler) decideSecrets(ctx context.Context, project *v1.Project, d *decision) error {
	sources, err := r.sources(ctx, project, d)
	if err != nil {
		return err
	}
	content, refused, err := tenancy.Secrets(project, sources)
	if err != nil {
		return err
	}
	for _, refusal := range refused {
		d.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %s", refusal.Name, refusal.Message))
	}
	if len(content.PerNamespace.Templates) == 0 {
		return nil
	}
	copies, err := set.New(set.ID(set.Secrets, project.Name), nil, content)
	if err != nil {
		d.fail(v1.ReasonDeliveryFailed, err.Error())
		return nil
	}
	d.held = r.unguarded(d.members)
	for _, member := range d.members {
		d.secrets[member] = copies
		if _, held := d.held[member.Name]; !held {
			continue
		}
		kept, err := keep(r.Deliveries.Kept(copies.ID, member), copies, content)
		if err != nil { // the copies are too large even without the namespaces that have since been removed
			d.fail(v1.ReasonDeliveryFailed, fmt.Sprintf("The copies in cluster %s are taken away: %v", member.Name, err))
			kept = delivery.Absent(copies.ID)
		}
		d.secrets[member] = kept
	}
	return nil
}

// keep returns the copies for a member in which projects are not guarded: the copies that the member should already
// have, except for copies in namespaces that no longer belong to the project. It does not add or change any copies.
func keep(kept, copies *set.Set, content set.Content) (*set.Set, error) {
	switch {
	case kept == nil:
		return delivery.Unchanged(copies.ID), nil
	case kept.Digest == copies.Digest, delivery.IsAbsent(kept):
		return kept, nil
	}
	_, rest, err := set.Parse(kept.JSON())
	if err != nil {
		return nil, err
	}
	now := map[string]set.Template{}
	for _, template := range content.PerNamespace.Templates {
		now[template.Object.GetName()] = template
	}
	var templates []set.Template
	for _, template := range rest.PerNamespace.Templates {
		if is, there := now[template.Object.GetName()]; there {
			for _, namespace := range is.Except {
				if !slices.Contains(template.Except, namespace) {
					template.Except = append(template.Except, namespace)
				}
			}
			templates = append(templates, template)
		}
	}
	if len(templates) == 0 {
		return delivery.Absent(copies.ID), nil
	}
	rest.PerNamespace.Templates = templates
	return set.New(copies.ID, nil, rest)
}

// unguarded returns the members in which the project guards are not in force, and the outcome of delivering the guards
// to each. In these members, anyone who can label a namespace could obtain a project's Secrets.
func (r *Reconciler) unguarded(members []types.NamespacedName) map[string]delivery.Outcome {
	held := map[string]delivery.Outcome{}
	for _, guards := range r.Deliveries.Outcomes(set.Guards, members) {
		if guards.Stage == delivery.Applied {
			continue
		}
		guards.Failures = slices.Clone(guards.Failures)
		for i := range guards.Failures {
			guards.Failures[i].Message = "Copies of Secrets wait until projects are guarded: " + guards.Failures[i].Message
		}
		held[guards.Cluster] = guards
	}
	return held
}

// sources returns the Secrets that are labeled for a project. It reads the content only of the Secrets that are copied.
func (r *Reconciler) sources(ctx context.Context, project *v1.Project, d *decision) ([]corev1.Secret, error) {
	var labelled corev1.SecretList
	if err := r.Secrets.List(ctx, &labelled, client.InNamespace(project.Namespace), client.MatchingLabels{v1.LabelProject: project.Name}); err != nil {
		return nil, fmt.Errorf("list secrets of project %s/%s: %w", project.Namespace, project.Name, err)
	}
	slices.SortFunc(labelled.Items, func(a, b corev1.Secret) int { return cmp.Compare(a.Name, b.Name) })
	sources := labelled.Items[:0]
	for _, secret := range labelled.Items {
		tooLarge := (*index.SecretTooLargeError)(nil)
		var err error
		if tenancy.NeverCopied(&secret) == "" {
			err = r.Secrets.Get(ctx, client.ObjectKeyFromObject(&secret), &secret)
		}
		switch {
		case errors.As(err, &tooLarge):
			d.fail(v1.ReasonSecretRefused, fmt.Sprintf("Secret %s is not copied: %v", secret.Name, tooLarge))
		case err == nil:
			sources = append(sources, secret)
		case !apierrors.IsNotFound(err): // the removal of the Secret triggers another reconcile
			return nil, fmt.Errorf("read secret %s/%s: %w", project.Namespace, secret.Name, err)
		}
	}
	return sources, nil
}
