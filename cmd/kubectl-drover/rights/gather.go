// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// gathered contains the objects that were read from a workspace on the hub.
type gathered struct {
	access.Workspace
	// cluster is the Cluster that the question is about.
	cluster *v1.Cluster
	// ready holds the Ready condition of each binding.
	ready map[access.Reference]metav1.Condition
	// unread describes the rights that the caller lacks to read everything.
	unread []string
}

// gather reads all objects on the hub that are needed for an answer. If the caller lacks the rights to read some of
// them, gather records the missing rights and continues without these objects.
func gather(ctx context.Context, h *cli.Hub, cluster string) (*gathered, error) {
	clusters, templates, projects := &v1.ClusterList{}, &v1.RoleTemplateList{}, &v1.ProjectList{}
	ofClusters, ofProjects := &v1.ClusterRoleTemplateBindingList{}, &v1.ProjectRoleTemplateBindingList{}
	g := &gathered{ready: map[access.Reference]metav1.Condition{}}
	var refused []string
	for _, want := range []struct {
		list     client.ObjectList
		resource string
		options  []client.ListOption
	}{
		{clusters, "clusters", []client.ListOption{h.InWorkspace()}},
		{templates, "roletemplates", nil},
		{projects, "projects", []client.ListOption{h.InWorkspace()}},
		{ofClusters, "clusterroletemplatebindings", []client.ListOption{h.InWorkspace()}},
		{ofProjects, "projectroletemplatebindings", []client.ListOption{h.InWorkspace()}},
	} {
		err := h.List(ctx, want.list, want.options...)
		switch {
		case apierrors.IsForbidden(err):
			refused = append(refused, want.resource)
		case meta.IsNoMatchError(err):
			return nil, fmt.Errorf("list %s at %s: Drover is not installed there: select the hub with --kubeconfig or --context",
				want.resource, h.Config.Host)
		case err != nil:
			return nil, fmt.Errorf("list %s: %w", want.resource, err)
		}
	}
	g.unread = missingRights(h, refused)
	g.Workspace = access.Workspace{
		Templates: access.Index(templates.Items), Clusters: map[string]labels.Set{}, Projects: map[string]*v1.Project{},
		ClusterBindings: ofClusters.Items, ProjectBindings: ofProjects.Items, Now: time.Now(),
	}
	for i := range projects.Items {
		g.Projects[projects.Items[i].Name] = &projects.Items[i]
	}
	g.noteReady()
	return g, find(ctx, h, cluster, clusters.Items, g)
}

// missingRights describes the rights that the caller lacks, and the roles that usually grant them.
func missingRights(h *cli.Hub, resources []string) []string {
	var rights, inWorkspace []string
	for _, resource := range resources {
		if resource == "roletemplates" {
			rights = append(rights, "list roletemplates."+v1.Group+" on the hub (granted by ClusterRole "+
				"drover-roletemplate-viewer)")
		} else {
			inWorkspace = append(inWorkspace, resource+"."+v1.Group)
		}
	}
	if len(inWorkspace) > 0 {
		rights = append(rights,
			fmt.Sprintf("list %s in namespace %s of the hub (granted by ClusterRole "+
				"view)", strings.Join(inWorkspace, ", "), h.Workspace))
	}
	return rights
}

// find stores the given Clusters in g. It also stores the Cluster that the question is about. If the caller is not
// allowed to list Clusters, find reads that Cluster by name.
func find(ctx context.Context, h *cli.Hub, cluster string, list []v1.Cluster, g *gathered) error {
	for i := range list {
		g.Clusters[list[i].Name] = list[i].Labels
		if list[i].Name == cluster {
			g.cluster = &list[i]
		}
	}
	if g.cluster != nil {
		return nil
	}
	found := &v1.Cluster{}
	err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: cluster}, found)
	switch {
	case err == nil:
		g.cluster, g.Clusters[cluster] = found, found.Labels
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("read Cluster %s/%s: forbidden: ask for the right to %s", h.Workspace, cluster, strings.Join(missingRights(h, []string{"clusters"}), ""))
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read Cluster %s/%s: %w", h.Workspace, cluster, err)
	case len(list) == 0:
		return fmt.Errorf("workspace %s has no cluster %s, nor any other: select another workspace with -w", h.Workspace,
			cluster)
	}
	return fmt.Errorf("cluster %s does not exist in workspace %s, which has %s: use another name, or another workspace with -w",
		cluster, h.Workspace, strings.Join(slices.Sorted(maps.Keys(g.Clusters)), ", "))
}

func (g *gathered) noteReady() {
	note := func(kind string, object client.Object, status v1.DeliveryStatus) {
		if c := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); c != nil {
			g.ready[access.Reference{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = *c
		}
	}
	for i := range g.ClusterBindings {
		note(access.KindClusterBinding, &g.ClusterBindings[i], g.ClusterBindings[i].Status)
	}
	for i := range g.ProjectBindings {
		note(access.KindProjectBinding, &g.ProjectBindings[i], g.ProjectBindings[i].Status)
	}
}

// neverJoined returns an error if no cluster has joined as this Cluster. In that case, there is no member to query.
func (g *gathered) neverJoined() error {
	if g.cluster.Status.ClusterUID != "" {
		return nil
	}
	return fmt.Errorf("it has never joined the hub: run the command of Secret %s of the workspace in the cluster",
		g.cluster.Name+v1.RegistrationSecretSuffix)
}

// away returns an error if the hub currently cannot reach the member.
func (g *gathered) away() error {
	c := meta.FindStatusCondition(g.cluster.Status.Conditions, v1.ConditionConnected)
	switch {
	case c == nil:
		return errors.New("it has not connected yet: see \"kubectl describe cluster " + g.cluster.Name + "\" for the reason")
	case c.Status != metav1.ConditionTrue:
		return fmt.Errorf("it is not connected: %s: %s", c.Reason, c.Message)
	}
	return nil
}
