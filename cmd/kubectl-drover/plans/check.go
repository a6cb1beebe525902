// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

// maxParallel is the maximum number of Clusters that are checked at the same time.
const maxParallel = 64

// checkOptions holds the flags of "plan check".
type checkOptions struct {
	shared   *cli.Options
	parallel int
	timeout  time.Duration
}

func newCheck(o *cli.Options) *cobra.Command {
	r := &checkOptions{shared: o}
	c := &cobra.Command{
		Use: "check NAME | FILE | -", Short: "Check whether a plan can upgrade Kubernetes safely",
		Long: `Check whether a plan can upgrade Kubernetes safely in each Cluster that it selects. Nothing is
changed. A plan whose version is not a version of Kubernetes has no checks.

NAME is a Plan of the workspace. FILE, or - for standard input, contains Plans, which do not have to
exist on the hub.

The checks read each Cluster through the hub, with your own rights: nodes, pods,
poddisruptionbudgets, webhook configurations, services, endpointslices, and the path /metrics. Facts
that you may not read are reported as not checked. The agent runs the same checks before the plan
begins. Only the agent checks when the API server's certificate expires.

Exit codes: 0 all Clusters are safe to upgrade; 1 there are findings; 2 a Cluster was not checked
completely, or an error occurred.`,
		Example: `  kubectl drover plan check k3s-server -w team-a
  kubectl drover plan check plans.yaml -o wide
  kubectl drover plan check k3s-server -o json`,
		Args:              cli.Arguments(1, "NAME, FILE or -"),
		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveDefault),
		PreRunE:           func(*cobra.Command, []string) error { return r.check() },
		RunE: func(c *cobra.Command, args []string) error {
			return r.run(c, args[0])
		},
	}
	c.Flags().IntVar(&r.parallel, "parallel", 8, "How many Clusters to check at the same time")
	c.Flags().DurationVar(&r.timeout, "timeout", time.Minute, "How long the checks of one Cluster may take")
	o.BindListOutput(c)
	return c
}

func (r *checkOptions) check() error {
	if r.parallel < 1 || r.parallel > maxParallel {
		return fmt.Errorf("--parallel is %d: use 1 to %d", r.parallel, maxParallel)
	}
	if r.timeout <= 0 {
		return fmt.Errorf("--timeout is %s: it must be positive", r.timeout)
	}
	return r.shared.CheckListOutput()
}

// run checks each Plan. source is the name of a Plan or of a file, or "-" for standard input.
func (r *checkOptions) run(c *cobra.Command, source string) error {
	h, err := r.shared.HubToRead()
	if err != nil {
		return err
	}
	previews, err := readPreviews(source, c.InOrStdin())
	if err != nil {
		return err
	}
	answer := &checked{Items: []checkedCluster{}}
	for i := range previews {
		if previews[i].whole {
			return fmt.Errorf("check %s: it is a scenario, and has no Clusters to check", source)
		}
		plan := &previews[i].scenario.Plan
		if plan.Kind == "" && plan.Name == "" {
			if plan, err = namedPlan(c.Context(), h, source); err != nil {
				return err
			}
		}
		items, err := r.clusters(c.Context(), h, plan, c.ErrOrStderr())
		if err != nil {
			return err
		}
		answer.Items = append(answer.Items, items...)
	}
	if err := r.shared.Print(c.OutOrStdout(), answer, answer.Text); err != nil {
		return err
	}
	return answer.verdict()
}

// namedPlan reads a Plan whose name may also be the name of a file.
func namedPlan(ctx context.Context, h *cli.Hub, name string) (*v1.Plan, error) {
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	plan, err := readPlan(ctx, h, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w, or name an existing file", err)
	}
	return plan, err
}

// clusters checks all Clusters that a Plan selects.
func (r *checkOptions) clusters(ctx context.Context, h *cli.Hub, plan *v1.Plan, progress io.Writer,
) ([]checkedCluster, error) {
	version := cmp.Or(plan.Spec.Version, plan.Status.LatestVersion)
	if version == "" {
		return nil, fmt.Errorf("check plan %s: the version of its channel is not known yet: use the name of a Plan on the "+
			"hub, or set spec.version", plan.Name)
	}
	target, applies := upgradecheck.TargetOf(plan, version)
	if gates := plan.Spec.Gates; !applies && gates != nil && gates.UpgradeChecks == v1.UpgradeChecksEnforce {
		return nil, fmt.Errorf("check plan %s: %q is not a version of Kubernetes, so the plan does not start: set the "+
			"version to one such as v1.36.3, or set spec.gates.upgradeChecks to Disabled", plan.Name, version)
	}
	if !applies {
		fmt.Fprintf(progress, "Plan %s has no checks, because %s is not a version of Kubernetes.\n", cli.Plain(plan.Name),
			cli.Plain(version))
		return nil, nil
	}
	sites, err := r.sitesOf(ctx, h, plan)
	if err != nil {
		return nil, err
	}
	done := make([]checkedCluster, len(sites))
	var wait sync.WaitGroup
	var mu sync.Mutex
	slots, n := make(chan struct{}, r.parallel), 0
	for i := range sites {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			one := r.one(ctx, &sites[i], &target)
			one.Plan, one.Version, one.Cluster = plan.Name, version, sites[i].name
			done[i] = one
			mu.Lock()
			defer mu.Unlock()
			n++
			fmt.Fprintf(progress, "%d/%d %s: %s\n", n, len(sites), cli.Plain(one.Cluster), one.state())
		})
	}
	wait.Wait()
	return done, ctx.Err()
}

// site is a cluster to check.
type site struct {
	name string
	// away explains why the cluster cannot be reached, or is "".
	away string
	// config returns the client configuration.
	config func() (*rest.Config, error)
	// direct reports whether the configuration leads to the cluster's API server itself.
	direct bool
	// uid is the UID of the cluster. It must be verified if the kubeconfig may lead to another cluster, and is empty
	// otherwise.
	uid string
}

// ownCluster is the name of the hub's own cluster, which a Plan without a target upgrades.
const ownCluster = "(this cluster)"

// sitesOf returns the clusters that a Plan selects, in the order of their names.
func (r *checkOptions) sitesOf(ctx context.Context, h *cli.Hub, plan *v1.Plan) ([]site, error) {
	if plan.Spec.ClusterName == "" && plan.Spec.ClusterSelector == nil {
		return []site{{name: ownCluster, direct: true, config: func() (*rest.Config, error) { return h.Config, nil }}}, nil
	}
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	selected, _, err := listSelected(ctx, h, &plan.Spec.PlanTarget)
	if err != nil {
		return nil, err
	}
	selected = slices.DeleteFunc(selected, func(c v1.Cluster) bool {
		return c.Labels[v1.PlanLabel(plan.Name)] == v1.PlanDisabled
	})
	if len(selected) == 0 {
		return nil, fmt.Errorf("check plan %s: it selects no Cluster of %s", plan.Name, h.Workspace)
	}
	base, _ := r.shared.Proxy()
	var sites []site
	for i := range selected {
		cluster := &selected[i]
		one := site{name: cluster.Name, config: func() (*rest.Config, error) {
			return r.shared.MemberConfig("", base, h.Workspace, cluster.Name)
		}}
		if base == "" {
			one.uid = cluster.Status.ClusterUID
		}
		switch connected := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionConnected); {
		case connected == nil:
			one.away = "no agent has joined"
		case connected.Status != metav1.ConditionTrue:
			one.away = "it is not connected: " + connected.Message
		}
		sites = append(sites, one)
	}
	slices.SortFunc(sites, func(a, b site) int { return cmp.Compare(a.name, b.name) })
	return sites, nil
}

// one checks one cluster.
func (r *checkOptions) one(ctx context.Context, p *site, target *upgradecheck.Target) checkedCluster {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	fail := func(err error) checkedCluster {
		return checkedCluster{Error: cli.Unreached(err).Error(), Findings: []upgradecheck.Finding{}}
	}
	if p.away != "" {
		return fail(errors.New(p.away))
	}
	config, err := p.config()
	if err != nil {
		return fail(err)
	}
	client, err := restClient(config)
	if err != nil {
		return fail(err)
	}
	if p.uid != "" {
		if err := verify(ctx, client, p.uid); err != nil {
			return fail(fmt.Errorf("%s: %w", config.Host, err))
		}
	}
	facts, err := upgradecheck.Gather(ctx, upgradecheck.Source{Client: client, Direct: p.direct}, target)
	if err != nil {
		return fail(err)
	}
	return checkedCluster{Findings: append([]upgradecheck.Finding{}, upgradecheck.Check(facts, target)...)}
}

// verify returns an error unless a client leads to the cluster with the given UID.
func verify(ctx context.Context, client rest.Interface, uid string) error {
	raw, err := client.Get().AbsPath("/api/v1/namespaces", metav1.NamespaceSystem).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("find out which cluster it is: %w", err)
	}
	var system metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &system); err != nil {
		return fmt.Errorf("find out which cluster it is: %w", err)
	}
	if string(system.UID) != uid {
		return errors.New("it leads to another cluster: record the hub's address with \"kubectl drover use --hub=URL\"")
	}
	return nil
}

// restClient returns a client that knows only the type Status, in which API servers report errors.
func restClient(config *rest.Config) (rest.Interface, error) {
	kinds := runtime.NewScheme()
	metav1.AddToGroupVersion(kinds, schema.GroupVersion{Version: "v1"})
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(kinds).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", config.Host, err)
	}
	return client, nil
}
