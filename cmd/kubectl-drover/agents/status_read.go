// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/checkpoint"
)

const (
	// managerName is the name of the manager's Deployment and Lease.
	managerName = "drover-manager"
	// soon is how long before its expiry a certificate is reported as a problem. The hub normally renews its
	// certificates earlier.
	soon = 14 * 24 * time.Hour
	// dialLimit limits how long the hub's proxy may take to respond.
	dialLimit = 5 * time.Second
	// startLimit is how long a hub may lack a Lease, ready replicas or certificates after the manager's Deployment has
	// been created.
	startLimit = 2 * time.Minute
)

// statusReader gathers the state of a hub.
type statusReader struct {
	*cli.Hub
	namespace string
	ca        []byte
	now       time.Time // time on the hub's clock
	fresh     bool      // whether the manager's Deployment was created less than startLimit ago
	status    hubStatus
	// refused contains the parts of the state that the user is not allowed to read.
	refused map[string]bool
}

// Parts of the state that must be readable to rule out problems. leaderPart shows whether a manager is the leader.
// agentsPart shows the states of the agents.
const (
	leaderPart = "the manager's Lease"
	agentsPart = "Clusters"
)

// unsure returns an error if problems cannot be ruled out because the user is not allowed to read a part of the state.
func (r *statusReader) unsure() error {
	var all []error
	if r.refused[leaderPart] {
		all = append(all, errors.New("you may not read the manager's Lease, so it is not known whether a manager leads"))
	}
	if r.refused[agentsPart] {
		all = append(all, errors.New("you may not read Clusters, so the states of the agents are not known"))
	}
	return errors.Join(all...)
}

// read gathers the whole state. If the user is not allowed to read a part, read still gathers the other parts.
func (r *statusReader) read(ctx context.Context) error {
	s := &r.status
	s.Certificates, s.Providers, s.Approvals, s.Problems = []certificate{}, []provider{}, []string{}, []string{}
	s.Hub.Server, r.refused = r.Config.Host, map[string]bool{}
	if err := errors.Join(appsv1.AddToScheme(r.Scheme()), coordinationv1.AddToScheme(r.Scheme())); err != nil {
		return err
	}
	if err := r.kubernetes(ctx); err != nil {
		return err
	}
	return r.parts(ctx)
}

// parts reads the parts of the state that belong to Drover.
func (r *statusReader) parts(ctx context.Context) error {
	s := &r.status
	for _, part := range []struct {
		name string
		read func(context.Context) error
	}{
		{"the manager's Deployment", r.manager}, // first, because it shows whether the Deployment is new
		{leaderPart, r.leader}, {agentsPart, r.clusters}, {"Hosts", r.hosts}, {"AuthProviders", r.providers},
		{"certificates", r.certificates},
	} {
		switch err := part.read(ctx); {
		case meta.IsNoMatchError(err):
			return fmt.Errorf("read the state of the hub at %s: Drover is not installed there: select the hub with --hub "+
				"or --context", r.Config.Host)
		case apierrors.IsForbidden(err):
			s.Unread = append(s.Unread, part.name+": you lack the right")
			r.refused[part.name] = true
		case err != nil:
			return fmt.Errorf("read %s: %w", part.name, err)
		}
	}
	for _, list := range [][]string{s.Problems, s.Starting, s.Unread, s.Approvals} {
		slices.Sort(list)
	}
	return nil
}

func (r *statusReader) problem(format string, args ...any) {
	r.status.Problems = append(r.status.Problems, fmt.Sprintf(format, args...))
}

// notYet records that the hub lacks something. This counts as a problem unless the manager's Deployment is new.
func (r *statusReader) notYet(format string, args ...any) {
	if !r.fresh {
		r.problem(format, args...)
		return
	}
	r.status.Starting = append(r.status.Starting, fmt.Sprintf(format, args...))
}

// kubernetes reads the version and the clock of the hub's API server.
func (r *statusReader) kubernetes(ctx context.Context) error {
	r.now = clockOf(ctx, r.Config)
	found, err := discovery.NewDiscoveryClientForConfig(r.Config)
	if err != nil {
		return err
	}
	version, err := found.ServerVersion()
	if err != nil {
		return fmt.Errorf("read the version of the hub: %w", err)
	}
	r.status.Hub.Kubernetes = version.GitVersion
	return nil
}

// clockOf returns the time on an API server's clock. If the API server does not report its time, clockOf returns the
// time on this computer's clock.
func clockOf(ctx context.Context, config *rest.Config) time.Time {
	now := time.Now()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return now
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(config.Host, "/")+"/version", nil)
	if err != nil {
		return now
	}
	resp, err := c.Do(req)
	if err != nil {
		return now
	}
	_ = resp.Body.Close()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		return date
	}
	return now
}

func (r *statusReader) manager(ctx context.Context) error {
	d := &appsv1.Deployment{}
	err := r.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: managerName}, d)
	if apierrors.IsNotFound(err) {
		r.status.Unread = append(r.status.Unread, fmt.Sprintf("the manager's Deployment: namespace %s has none: see "+
			"--manager-namespace", r.namespace))
		return nil
	}
	if err != nil {
		return err
	}
	r.fresh = r.now.Sub(d.CreationTimestamp.Time) < startLimit
	hub := &r.status.Hub
	hub.Replicas, hub.Ready = 1, d.Status.ReadyReplicas
	if d.Spec.Replicas != nil {
		hub.Replicas = *d.Spec.Replicas
	}
	for i := range d.Spec.Template.Spec.Containers {
		hub.Image = cmp.Or(hub.Image, d.Spec.Template.Spec.Containers[i].Image)
	}
	if hub.Ready < hub.Replicas {
		r.notYet("%d of %d replicas of the manager are ready: kubectl -n %s describe pods", hub.Ready, hub.Replicas,
			r.namespace)
	}
	return nil
}

// leader reads the Lease. If the Lease has expired, no manager is active.
func (r *statusReader) leader(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	err := r.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: managerName}, lease)
	if apierrors.IsNotFound(err) {
		r.notYet("no manager has run yet: namespace %s has no Lease %s: see --manager-namespace", r.namespace, managerName)
		return nil
	}
	if err != nil {
		return err
	}
	r.status.Leader = leaderOf(lease, r.now)
	if !r.status.Leader.Alive {
		since := ""
		if at := r.status.Leader.Renewed; !at.IsZero() {
			since = " since " + at.Local().Format(time.RFC3339)
		}
		r.problem("no manager leads%s: no one watches the fleet, and the states of Clusters are out of date", since)
	}
	return nil
}

// leaderOf returns the leader named in a Lease. A stopping leader releases its Lease.
func leaderOf(lease *coordinationv1.Lease, now time.Time) leaderState {
	l, spec := leaderState{}, lease.Spec
	if spec.RenewTime == nil {
		return l
	}
	l.Renewed = spec.RenewTime.Time
	if spec.HolderIdentity != nil {
		l.Holder = *spec.HolderIdentity
	}
	l.Alive = now.Before(checkpoint.HeldUntil(lease, l.Renewed))
	return l
}

// clusters counts the agents of all workspaces, or only of the selected workspace if the user is not allowed to read
// the other workspaces.
func (r *statusReader) clusters(ctx context.Context) error {
	var all v1.ClusterList
	err := r.List(ctx, &all)
	if apierrors.IsForbidden(err) {
		r.status.Unread = append(r.status.Unread, "Clusters of other workspaces than "+r.Workspace+": you lack the right")
		err = r.List(ctx, &all, r.InWorkspace())
	}
	if err != nil {
		return err
	}
	r.count(all.Items)
	return nil
}

// count counts the agents of Clusters, and records the agents that need attention.
func (r *statusReader) count(all []v1.Cluster) {
	counts := &agentCounts{Total: len(all), States: map[string]int{}, Versions: map[string]int{}}
	r.status.Agents = counts
	bad := map[string][]string{}
	for i := range all {
		c := &all[i]
		row := agentOf(c)
		counts.States[row.State]++
		if row.Version != "" {
			counts.Versions[row.Version]++
		}
		if slices.Contains([]string{agentFailed, agentDegraded, agentAway}, row.State) {
			bad[row.State] = append(bad[row.State], c.Namespace+"/"+c.Name)
		}
		r.approval("Cluster", c, c.Status.Conditions)
	}
	for state, names := range bad {
		r.problem("%s: %s: \"kubectl drover agents -A\" says why", agentProblem(state, len(names)), first(names))
	}
}

// agentProblem returns a message about n agents in the given state.
func agentProblem(state string, n int) string {
	agents, are := "agents", "are"
	if n == 1 {
		agents, are = "agent", "is"
	}
	switch state {
	case agentFailed:
		return fmt.Sprintf("the upgrade of %d %s failed", n, agents)
	case agentDegraded:
		return fmt.Sprintf("%d %s %s connected, but not all of the pods are ready", n, agents, are)
	}
	return fmt.Sprintf("%d %s %s %s", n, agents, are, state)
}

// first joins the first few names in a list.
func first(names []string) string {
	const shown = 5
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if len(names) > shown {
		text += " and others"
	}
	return text
}

func (r *statusReader) hosts(ctx context.Context) error {
	var all v1.HostList
	err := r.List(ctx, &all)
	if apierrors.IsForbidden(err) {
		err = r.List(ctx, &all, r.InWorkspace())
	}
	for i := range all.Items {
		r.approval("Host", &all.Items[i], all.Items[i].Status.Conditions)
	}
	return err
}

// approval records an object if it is not changed until an administrator confirms a restore.
func (r *statusReader) approval(kind string, object client.Object, conditions []metav1.Condition) {
	if meta.IsStatusConditionFalse(conditions, v1.ConditionRestoreConfirmed) {
		r.status.Approvals = append(r.status.Approvals, fmt.Sprintf("%s %s: confirm with \"kubectl drover restored\"", kind,
			client.ObjectKeyFromObject(object)))
	}
}

func (r *statusReader) providers(ctx context.Context) error {
	var all v1.AuthProviderList
	if err := r.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		p := &all.Items[i]
		one := provider{Name: p.Name, Ready: "Unknown"}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready != nil {
			one.Ready, one.Message = string(ready.Status), ready.Message
		}
		if p.Spec.Disabled {
			one.Ready = "Disabled"
		} else if one.Ready == "False" {
			r.problem("AuthProvider %s is not ready: %s", p.Name, one.Message)
		}
		r.status.Providers = append(r.status.Providers, one)
	}
	return nil
}

func agentStateOrder() []string {
	return []string{
		agentCurrent, agentWaiting, agentUpgrading, agentFailed, agentDegraded, agentUnmanaged, agentAway, agentAbsent,
	}
}

// counted formats counts in the given order. If no order is given, it sorts the counts by name.
func counted(counts map[string]int, order []string) string {
	if order == nil {
		order = slices.Sorted(maps.Keys(counts))
	}
	var words []string
	for _, key := range order {
		if n := counts[key]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, key))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "no Cluster")
}
