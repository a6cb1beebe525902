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
	// maxNodes is the maximum number of nodes that are simulated in a cluster, regardless of how many nodes the agent
	// reports. Kubernetes does not support more nodes.
	maxNodes = 5000
	// maxSimulated is the maximum total number of simulated nodes. A simulation of more nodes would take gigabytes of
	// memory and several hours.
	maxSimulated = 50_000
	// fromInput is the file name for standard input.
	fromInput = "-"
)

// previewOptions holds the flags of "plan preview".
type previewOptions struct {
	*cli.Options
	start                   string
	nodes                   int
	prepare, drain, upgrade time.Duration
}

func newPreview(o *cli.Options) *cobra.Command {
	r := &previewOptions{Options: o}
	c := &cobra.Command{
		Use: "preview NAME | FILE | -", Short: "Simulate a plan, and print its steps and their times",
		Long: `Simulate a plan, and print its steps and their times. The simulation uses the planner that
runs plans.

NAME is a Plan of the workspace. FILE, or - for standard input, contains Plans, which do not have to
exist on the hub. Each document is simulated on its own. Other kinds are skipped. A document may
also be a scenario, which is a plan with its simulated clusters and needs no hub.

The simulation starts at the beginning of the plan, as if the plan were not paused and had not
upgraded any node. It uses the Clusters of the workspace, each with its number of nodes. The hub
does not know which nodes the plan selects, so all are simulated. A Plan without a target is
simulated on the nodes of the cluster itself. Lines that begin with "#" tell where the simulation
differs from the clusters.`,
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
	flags.StringVar(&r.start, "start", "", "When the plan begins, such as 2027-01-02T15:04:05Z (default: now)")
	flags.IntVar(&r.nodes, "nodes", 0,
		fmt.Sprintf("How many nodes to simulate in each cluster, at most %d (default: as many as the cluster has)", maxNodes))
	flags.DurationVar(&r.prepare, "prepare", 10*time.Second, "How long the prepare step of a node takes")
	flags.DurationVar(&r.drain, "drain", 30*time.Second, "How long the drain of a node takes")
	flags.DurationVar(&r.upgrade, "upgrade", time.Minute, "How long the upgrade of a node takes")
	return c
}

// check rejects flag values that are invalid or too large to simulate.
func (r *previewOptions) check() error {
	if r.nodes < 0 || r.nodes > maxNodes {
		return fmt.Errorf("--nodes is %d: use 1 to %d, or omit it to simulate as many nodes as each cluster has", r.nodes,
			maxNodes)
	}
	for flag, d := range map[string]time.Duration{"prepare": r.prepare, "drain": r.drain, "upgrade": r.upgrade} {
		if d < 0 {
			return fmt.Errorf("--%s is %s: it must not be negative", flag, d)
		}
	}
	return nil
}

// preview prints a simulation of each Plan. source is the name of a Plan or of a file, or "-" for standard input.
func (r *previewOptions) preview(ctx context.Context, in io.Reader, out io.Writer, source string) error {
	if err := r.check(); err != nil {
		return err
	}
	previews, err := readPreviews(source, in)
	if err != nil {
		return err
	}
	out = interruptible{ctx, out}
	for i := range previews {
		if err := r.complete(ctx, source, &previews[i]); err != nil {
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

// interruptible is a writer that fails once ctx is canceled. This stops a simulation, which writes a line for each step
// but does not accept a context.
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

// preview is one simulation. Initially, it holds either a whole scenario or a Plan without Clusters.
type preview struct {
	scenario simulation.Scenario
	whole    bool
	// remarks describe how the simulation differs from the real clusters.
	remarks []string
}

func (a *preview) remark(format string, words ...any) {
	a.remarks = append(a.remarks, fmt.Sprintf(format, words...))
}

// readPreviews reads previews from the file with the given name, or from standard input. If the file does not exist,
// readPreviews returns one empty preview for the Plan with that name on the hub.
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
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, explainDecoding(err))
		}
	}
	if len(previews) == 0 {
		return nil, fmt.Errorf("read %s: it contains no Plan: add one, or use the name of a Plan on the hub", name)
	}
	return previews, nil
}

// addPreviews adds the Plans in a document, including Plans in a List. If the document is a scenario, addPreviews adds
// the scenario. It skips other kinds.
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

// complete fills in a preview from the flags. If the preview is not a whole scenario, complete also reads objects from
// the hub.
func (r *previewOptions) complete(ctx context.Context, name string, a *preview) error {
	if !a.whole {
		h, err := r.HubToRead()
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
			return fmt.Errorf("--start is %q: use a time with its zone, such as 2027-01-02T15:04:05Z or "+
				"2027-01-02T15:04:05+01:00", r.start)
		}
		a.scenario.Start = metav1.NewTime(at)
	}
	total := 0
	for i := range a.scenario.Clusters {
		total += len(a.scenario.Clusters[i].Nodes)
	}
	if total > maxSimulated {
		return fmt.Errorf("simulate plan %s: its clusters have %d nodes, and at most %d can be simulated: reduce the number "+
			"with --nodes", a.scenario.Plan.Name, total, maxSimulated)
	}
	return nil
}

// fill adds the Clusters of the hub to a preview. It also adds the Plan if the preview does not contain one.
func (r *previewOptions) fill(ctx context.Context, h *cli.Hub, name string, a *preview) error {
	scenario := &a.scenario
	if scenario.Plan.Kind == "" && scenario.Plan.Name == "" {
		plan, err := readPlan(ctx, h, name)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w, or name an existing file", err)
		} else if err != nil {
			return err
		}
		scenario.Plan = *plan
	}
	if scenario.Plan.Spec.Paused { // the preview of a paused plan shows the steps that follow once the plan resumes
		scenario.Plan.Spec.Paused = false
		a.remark("the plan is paused: it takes none of these steps until spec.paused is false")
	}
	a.approveAll()
	if scenario.Plan.Spec.Channel != "" {
		scenario.Latest = cmp.Or(scenario.Plan.Status.LatestVersion, "unknown") // the steps do not depend on the version
		if scenario.Plan.Spec.Version != "" {
			a.remark("the plan has both a version and a channel: it uses the version, and never asks the channel")
		}
	}
	scenario.Start = metav1.Now().Rfc3339Copy() // whole seconds, because windows open at whole minutes
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	scenario.Durations = simulation.Durations{Prepare: duration(r.prepare), Drain: duration(r.drain), Upgrade: duration(r.upgrade)}
	if scenario.Plan.Spec.ClusterName == "" && scenario.Plan.Spec.ClusterSelector == nil {
		return r.fillNodes(ctx, h, a)
	}
	return r.fillClusters(ctx, h, a)
}

// fillClusters adds the Clusters of the workspace, together with the number of nodes in each Cluster.
func (r *previewOptions) fillClusters(ctx context.Context, h *cli.Hub, a *preview) error {
	scenario := &a.scenario
	if scenario.Plan.Spec.NodeSelector != nil {
		scenario.Plan.Spec.NodeSelector = nil
		a.remark("the hub does not know which nodes the nodeSelector selects: all nodes are simulated")
	}
	clusters, all, err := listSelected(ctx, h, &scenario.Plan.Spec.PlanTarget)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("list clusters of %s: there is none to simulate the plan on: use another workspace with -w",
			h.Workspace)
	}
	if len(clusters) == 0 {
		clusters = all // the simulation reports that the plan selects none
	}
	total := 0
	for i := range clusters {
		if total += nodesOf(&clusters[i], r.nodes); total > maxSimulated {
			return fmt.Errorf("simulate plan %s: the clusters of %s have more than %d nodes, the most that can be simulated: "+
				"reduce the number with --nodes", scenario.Plan.Name, h.Workspace, maxSimulated)
		}
		scenario.Clusters = append(scenario.Clusters, simulated(&clusters[i], r.nodes))
	}
	a.remarkNodes(clusters, r.nodes)
	return nil
}

// remarkNodes adds remarks about Clusters whose node count is unknown or too large.
func (a *preview) remarkNodes(clusters []v1.Cluster, nodes int) {
	if nodes > 0 {
		a.remark("each cluster is simulated with %s, as set by --nodes", counted(nodes))
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
		a.remark("the hub does not know the nodes of %s: each is simulated with 1 node; set the number with --nodes",
			cli.Listed(unknown))
	}
	if len(large) > 0 {
		a.remark("only %d nodes of %s are simulated", maxNodes, cli.Listed(large))
	}
}

// counted returns a number of nodes as text, such as "1 node" or "3 nodes".
func counted(nodes int) string {
	if nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

// fillNodes adds the nodes of the hub's own cluster. A plan without a target upgrades these nodes.
func (r *previewOptions) fillNodes(ctx context.Context, h *cli.Hub, a *preview) error {
	scenario := &a.scenario
	if r.nodes > 0 {
		a.remark("the cluster is simulated with %s, as set by --nodes, and all nodes are selected", counted(r.nodes))
		scenario.Plan.Spec.NodeSelector = nil // simulated nodes have no labels
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
			delete(n.Labels, key) // simulate the node as if the plan had not upgraded it yet
		}
		itself.Nodes = append(itself.Nodes, simulation.Node{Name: n.Name, Labels: n.Labels})
	}
	scenario.Clusters = []simulation.Cluster{itself}
	return nil
}

// nodesOf returns the number of nodes of a Cluster to simulate. The agent reports this number, so it must not be
// trusted.
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
