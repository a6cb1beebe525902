// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Principals are who somebody is, by the names that bindings use.
type Principals struct {
	User   string
	Groups []string
}

func (p Principals) subjects() []v1.Subject {
	subjects := make([]v1.Subject, 0, 1+len(p.Groups))
	subjects = append(subjects, v1.Subject{Kind: v1.SubjectUser, Name: p.User})
	for _, group := range p.Groups {
		subjects = append(subjects, v1.Subject{Kind: v1.SubjectGroup, Name: group})
	}
	return subjects
}

// Bound is whether a binding that has not expired is for one of the principals and for a Cluster. What the role of the binding grants is of no
// matter: the member decides that. An error says that it is not known.
func Bound(ctx context.Context, reader client.Reader, who Principals, cluster types.NamespacedName, now time.Time) (bool, error) {
	target := lazyCluster{reader: reader, name: cluster}
	for _, subject := range who.subjects() {
		for _, bound := range []func(context.Context, client.Reader, v1.Subject, *lazyCluster, time.Time) (bool, error){boundToCluster, boundToProject} {
			if found, err := bound(ctx, reader, subject, &target, now); found || err != nil {
				return found, err
			}
		}
	}
	return false, nil
}

func boundToCluster(ctx context.Context, reader client.Reader, s v1.Subject, cluster *lazyCluster, now time.Time) (bool, error) {
	var list v1.ClusterRoleTemplateBindingList
	if err := lookUp(ctx, reader, &list, cluster.name.Namespace, bySubject, subjectKey(s)); err != nil {
		return false, err
	}
	for i := range list.Items {
		b := &list.Items[i]
		if !b.DeletionTimestamp.IsZero() || Expired(b.Spec.ExpiresAt, now) {
			continue
		}
		if is, err := cluster.selectedBy(ctx, b.Spec.ClusterTarget); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

func boundToProject(ctx context.Context, reader client.Reader, s v1.Subject, cluster *lazyCluster, now time.Time) (bool, error) {
	var list v1.ProjectRoleTemplateBindingList
	if err := lookUp(ctx, reader, &list, cluster.name.Namespace, bySubject, subjectKey(s)); err != nil {
		return false, err
	}
	for i := range list.Items {
		b := &list.Items[i]
		if !b.DeletionTimestamp.IsZero() || Expired(b.Spec.ExpiresAt, now) {
			continue
		}
		project := &v1.Project{}
		err := reader.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ProjectName}, project)
		if apierrors.IsNotFound(err) || err == nil && !project.DeletionTimestamp.IsZero() {
			continue
		} else if err != nil {
			return false, fmt.Errorf("read project %s: %w", b.Spec.ProjectName, err)
		}
		if is, err := cluster.selectedBy(ctx, project.Spec.ClusterTarget); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// Expired is whether a binding with that end has ended.
func Expired(end *metav1.Time, now time.Time) bool { return end != nil && !now.Before(end.Time) }

// lazyCluster is a Cluster that is read when its labels matter.
type lazyCluster struct {
	reader  client.Reader
	name    types.NamespacedName
	read    bool
	cluster *v1.Cluster // nil if it does not exist
}

func (c *lazyCluster) selectedBy(ctx context.Context, t v1.ClusterTarget) (bool, error) {
	if t.ClusterSelector == nil {
		return t.ClusterName == c.name.Name, nil
	}
	if !c.read {
		cluster := &v1.Cluster{}
		if err := c.reader.Get(ctx, c.name, cluster); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("read cluster %s: %w", c.name, err)
		} else if err == nil {
			c.cluster = cluster
		}
		c.read = true
	}
	return c.cluster != nil && Selects(t, c.name.Name, c.cluster.Labels), nil
}
