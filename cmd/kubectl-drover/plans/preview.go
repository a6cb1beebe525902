// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/rollout/simulation"
)

const (
	// maxNodes bounds the simulated nodes of a cluster, whatever its agent reports. Kubernetes supports no more.
	maxNodes = 5000
	// maxSimulated bounds the simulated nodes of all clusters: more would take gigabytes of memory, and hours.
	maxSimulated = 50_000
	// fromInput is the file name that means standard input.
	fromInput = "-"
)

// previewOptions are the flags of "plan preview".
type previewOptions struct {
	*cli.Options
	start                   string
	nodes                   int
	prepare, drain, upgrade time.Duration
}

func newPreview(o *cli.Options) *cobra.Command {
	r := &previewOptions{Options: o}
	c := &cobra.Command{
		Use: "preview NAME | FILE | -", Short: "Print the steps that a plan would take, with their times",
		Long: `Print the steps that a plan would take, with their times, as the planner that runs it takes them.

NAME is a Plan of the workspace. FILE, or - for standard input, has Plans, which need not be on the hub: each of its documents is simulated by itself, and
other kinds are passed over. A document may also be a scenario as hack/plan-steps runs it. A Plan is simulated from its beginning, as if it were not paused
and no node had it. The Clusters are those of the workspace, with as many nodes as they have; the hub does not know which of them the plan selects, so
all count. A Plan that names no Clusters is simulated on the nodes of the cluster itself. Lines that begin with "#" say where this is not what the plan
would find.`,
		Example: `  kubectl drover plan preview k3s-server -w team-a --upgrade 4m
  kubectl drover plan preview plans.yaml --start 2027-01-02T00:00:00Z
  kubectl kustomize plans | kubectl drover plan preview - --nodes 3`,
		Args:              cli.Arguments(1, "NAME, FILE or -"),
		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveDefault),
		RunE: func(c *cobra.Command, args []string) error {
			return r.preview(c.Context(), c.InOrStdin(), c.OutOrStdout(), args[0])
		},
	}
	flags := c.Flags()
	flags.StringVar(&r.start, "start", "", "When it begins, such as 2027-01-02T15:04:05Z (default: now)")
	flags.IntVar(&r.nodes, "nodes", 0, fmt.Sprintf("How many nodes each cluster has, at most %d (default: as many as it has)", maxNodes))
	flags.DurationVar(&r.prepare, "prepare", 10*time.Second, "How long prepare takes")
	flags.DurationVar(&r.drain, "drain", 30*time.Second, "How long a drain takes")
	flags.DurationVar(&r.upgrade, "upgrade", time.Minute, "How long an upgrade takes")
	return c
}

// check rejects values of flags that are invalid or cannot be simulated.
func (r *previewOptions) check() error {
	if r.nodes < 0 || r.nodes > maxNodes {
		return fmt.Errorf("--nodes is %d: give 1 to %d, or leave it out to simulate as many as each cluster has", r.nodes, maxNodes)
	}
	for flag, d := range map[string]time.Duration{"prepare": r.prepare, "drain": r.drain, "upgrade": r.upgrade} {
		if d < 0 {
			return fmt.Errorf("--%s is %s: nothing takes less than no time", flag, d)
		}
	}
	return nil
}

// preview prints the simulation of each Plan that a name, a file or the input has.
func (r *previewOptions) preview(ctx context.Context, in io.Reader, out io.Writer, what string) error {
	if err := r.check(); err != nil {
		return err
	}
	previews, err := readPreviews(what, in)
	if err != nil {
		return err
	}
	out = interruptible{ctx, out}
	for i := range previews {
		if err := r.complete(ctx, what, &previews[i]); err != nil {
			return err
		}
		if name := previews[i].scenario.Plan.Name; len(previews) > 1 {
			if _, err := fmt.Fprintf(out, "# Plan %s, %d of %d\n", name, i+1, len(previews)); err != nil {
				return err
			}
		}
		for _, remark := range previews[i].remarks {
			if _, err := fmt.Fprintln(out, "#", cli.Plain(remark)); err != nil {
				return err
			}
		}
		if err := simulation.Print(previews[i].scenario, out); err != nil {
			return err
		}
	}
	return nil
}

// interruptible is a writer that fails once ctx has ended. A simulation writes a line for each step and knows no
// context.
type interruptible struct {
	ctx context.Context
	out io.Writer
}

func (w interruptible) Write(text []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.out.Write(text)
}

// preview is one simulation: a Plan without its Clusters yet, or a whole scenario.
type preview struct {
	scenario simulation.Scenario
	whole    bool
	// remarks say where the simulation differs from what the plan would find in its clusters.
	remarks []string
}

func (a *preview) remark(format string, words ...any) {
	a.remarks = append(a.remarks, fmt.Sprintf(format, words...))
}

// readPreviews reads a file, if one has that name, or standard input. Otherwise it returns one empty preview, for the
// Plan of that name on the hub.
func readPreviews(name string, in io.Reader) ([]preview, error) {
	if name != fromInput {
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			return make([]preview, 1), nil
		} else if err != nil {
			return nil, fmt.Errorf("read scenario: %w", err)
		}
		defer file.Close()
		in = file
	}
	var previews []preview
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			previews, err = addPreviews(previews, document)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, err)
		}
	}
	if len(previews) == 0 {
		return nil, fmt.Errorf("read %s: it has no Plan: give one, or the name of one on the hub", name)
	}
	return previews, nil
}

// addPreviews adds the Plans of a document or of its List, or the scenario. It skips other kinds.
func addPreviews(previews []preview, document []byte) ([]preview, error) {
	var some struct {
		metav1.TypeMeta `json:",inline"`
		Plan            any                    `json:"plan"`
		Items           []runtime.RawExtension `json:"items"`
	}
	if err := yaml.Unmarshal(document, &some); err != nil {
		return nil, err
	}
	var err error
	switch {
	case some.Kind == "Plan":
		var one preview
		err = yaml.UnmarshalStrict(document, &one.scenario.Plan)
		previews = append(previews, one)
	case some.Kind == "List":
		for i := range some.Items {
			if previews, err = addPreviews(previews, some.Items[i].Raw); err != nil {
				return nil, err
			}
		}
	case some.Kind == "" && some.Plan != nil:
		one := preview{whole: true}
		err = yaml.UnmarshalStrict(document, &one.scenario)
		previews = append(previews, one)
	}
	return previews, err
}

// complete completes a preview with the flags and, if it is not whole, with what the hub knows.
func (r *previewOptions) complete(ctx context.Context, name string, a *preview) error {
	if !a.whole {
		h, err := r.Hub()
		if err != nil {
			return err
		}
		if err := r.fill(ctx, h, name, a); err != nil {
			return err
		}
	}
	if r.start != "" {
		at, err := time.Parse(time.RFC3339, r.start)
		if err != nil {
			return fmt.Errorf("--start is %q: give a time with its zone, such as 2027-01-02T15:04:05Z or 2027-01-02T15:04:05+01:00", r.start)
		}
		a.scenario.Start = metav1.NewTime(at)
	}
	total := 0
	for i := range a.scenario.Clusters {
		total += len(a.scenario.Clusters[i].Nodes)
	}
	if total > maxSimulated {
		return fmt.Errorf("simulate plan %s: its clusters have %d nodes, and at most %d can be simulated: give fewer for each with --nodes", a.scenario.Plan.Name, total, maxSimulated)
	}
	return nil
}

// fill completes a preview with the Plan, if it has none yet, and the Clusters of the hub.
func (r *previewOptions) fill(ctx context.Context, h *cli.Hub, name string, a *preview) error {
	scenario := &a.scenario
	if scenario.Plan.Kind == "" && scenario.Plan.Name == "" {
		plan, err := readPlan(ctx, h, name)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w, or give a file that exists", err)
		} else if err != nil {
			return err
		}
		scenario.Plan = *plan
	}
	if scenario.Plan.Spec.Paused { // the preview of a paused plan shows what it will do
		scenario.Plan.Spec.Paused = false
		a.remark("the plan is paused: it takes none of these steps until spec.paused is false")
	}
	if scenario.Plan.Spec.Channel != "" {
		scenario.Latest = cmp.Or(scenario.Plan.Status.LatestVersion, "unknown") // no step depends on which
	}
	scenario.Start = metav1.Now()
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	scenario.Durations = simulation.Durations{Prepare: duration(r.prepare), Drain: duration(r.drain), Upgrade: duration(r.upgrade)}
	if scenario.Plan.Spec.ClusterName == "" && scenario.Plan.Spec.ClusterSelector == nil {
		return r.fillNodes(ctx, h, a)
	}
	return r.fillClusters(ctx, h, a)
}

// fillClusters adds the Clusters of the workspace, with as many nodes as they have.
func (r *previewOptions) fillClusters(ctx context.Context, h *cli.Hub, a *preview) error {
	scenario := &a.scenario
	if scenario.Plan.Spec.NodeSelector != nil {
		scenario.Plan.Spec.NodeSelector = nil
		a.remark("the hub does not know which nodes nodeSelector selects: all are simulated")
	}
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.InWorkspace()); err != nil {
		return fmt.Errorf("list clusters of %s: %w", h.Workspace, err)
	}
	if len(clusters.Items) == 0 {
		return fmt.Errorf("list clusters of %s: there is none to simulate the plan on: name another workspace with -w", h.Workspace)
	}
	total := 0
	for i := range clusters.Items {
		if total += nodesOf(&clusters.Items[i], r.nodes); total > maxSimulated {
			return fmt.Errorf("simulate plan %s: the clusters of %s have more than %d nodes, which is as many as can be simulated: give fewer for each with --nodes", scenario.Plan.Name, h.Workspace, maxSimulated)
		}
		scenario.Clusters = append(scenario.Clusters, simulated(&clusters.Items[i], r.nodes))
	}
	a.remarkNodes(clusters.Items, r.nodes)
	return nil
}

// remarkNodes names the Clusters whose nodes are invented.
func (a *preview) remarkNodes(clusters []v1.Cluster, nodes int) {
	if nodes > 0 {
		a.remark("each cluster is simulated with %s, as --nodes says", counted(nodes))
		return
	}
	var unknown, large []string
	for i := range clusters {
		switch c := &clusters[i]; {
		case c.Status.Nodes == nil || c.Status.Nodes.Total < 1:
			unknown = append(unknown, c.Name)
		case c.Status.Nodes.Total > maxNodes:
			large = append(large, c.Name)
		}
	}
	if len(unknown) > 0 {
		a.remark("the hub does not know the nodes of %s: each is simulated with 1 node; say with --nodes how many", listed(unknown))
	}
	if len(large) > 0 {
		a.remark("of the nodes of %s only %d are simulated", listed(large), maxNodes)
	}
}

// counted returns "1 node", or "3 nodes".
func counted(nodes int) string {
	if nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

// listed returns the first few of some names.
func listed(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// fillNodes adds the nodes of the cluster itself: a plan without a target upgrades those.
func (r *previewOptions) fillNodes(ctx context.Context, h *cli.Hub, a *preview) error {
	scenario := &a.scenario
	if r.nodes > 0 {
		a.remark("the cluster is simulated with %s, as --nodes says, and each is selected", counted(r.nodes))
		scenario.Plan.Spec.NodeSelector = nil // simulated ones have no labels
		scenario.Clusters = []simulation.Cluster{simulated(&v1.Cluster{}, r.nodes)}
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "NodeList"})
	if err := h.List(ctx, nodes); err != nil {
		return fmt.Errorf("list nodes at %s: %w: simulate the plan on other nodes with --nodes", h.Config.Host, err)
	}
	itself := simulation.Cluster{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if key := v1.PlanLabel(scenario.Plan.Name); n.Labels[key] != v1.PlanDisabled {
			delete(n.Labels, key) // as if it did not have the plan
		}
		itself.Nodes = append(itself.Nodes, simulation.Node{Name: n.Name, Labels: n.Labels})
	}
	scenario.Clusters = []simulation.Cluster{itself}
	return nil
}

// nodesOf returns how many nodes of a Cluster are simulated. Its agent reports their number, and may report any.
func nodesOf(c *v1.Cluster, nodes int) int {
	if nodes == 0 && c.Status.Nodes != nil {
		nodes = min(int(c.Status.Nodes.Total), maxNodes)
	}
	return max(nodes, 1)
}

func simulated(c *v1.Cluster, nodes int) simulation.Cluster {
	s := simulation.Cluster{Name: c.Name, Labels: c.Labels}
	for i := range nodesOf(c, nodes) {
		s.Nodes = append(s.Nodes, simulation.Node{Name: fmt.Sprintf("node-%d", i+1)})
	}
	return s
}
