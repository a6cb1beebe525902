// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// States of a member.
const (
	memberApplied = "applied" // it has all objects, and they are healthy
	memberFailed  = "failed"
	memberAway    = "away"    // it is not connected
	memberWorking = "working" // it is applying objects, or waiting for its turn
	// memberOther stands for any of these states except memberAway. The status of the Baseline does not name these
	// members.
	memberOther = "other"
)

// unfinished counts the members that are working, and the members that are away and lack the revision.
const unfinished = "unfinished"

// answer is the output of the command "baseline status".
type answer struct {
	baselineRow

	Stalled bool `json:"stalled"`
	Paused  bool `json:"paused"`
	// Pinned is the value of spec.revision.
	Pinned string `json:"pinned,omitempty"`
	// CompleteRevision is the last revision that was healthy in every member that took part.
	CompleteRevision string `json:"completeRevision,omitempty"`
	// States counts the members that are applied, failed and unfinished.
	States map[string]int  `json:"states"`
	Waves  []v1.WaveStatus `json:"waves,omitempty"`
	// Failures lists the failures that are reported in the Baseline's status.
	Failures []v1.Failure `json:"failures,omitempty"`
	// Members are the members that the user may see, sorted by state and name.
	Members []member `json:"members"`
	// Unread explains why members are missing.
	Unread string `json:"unread,omitempty"`

	now time.Time
}

type member struct {
	Cluster string `json:"cluster"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

func newStatus(o *cli.Options) *cobra.Command {
	c := named(o, &cobra.Command{
		Use: "status NAME", Short: "Show the state of a Baseline in its members, and its first failures",
		Long: `Show the state of a Baseline in its members, its waves, and its first failures. With -o wide, the
members that have not failed are listed, too.

The state of a member is one of:

  applied   it has all objects, and they are healthy
  failed    an object was rejected, has failed, or was not healthy in time
  away      it is not connected; its agent keeps the objects that it has
  working   it is at work, or waits for its turn
  other     it is applied, failed or working: the hub counts such members without naming them all

Members that have neither applied the revision nor failed are counted as unfinished. A member that is
away counts as applied if it applied the revision before.

Exit codes: 0 the state was shown; 1 the Baseline is stalled and a person must act; 2 an error
occurred.`,
		Example: "  kubectl drover baseline status flux -w team-a\n  kubectl drover baseline status flux -o json",
		PreRunE: func(*cobra.Command, []string) error { return o.CheckListOutput() },
	})
	o.BindListOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.ReadHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
			b, err := readBaseline(ctx, h, args[0])
			if err != nil {
				return err
			}
			shown, err := answerOf(ctx, h, b)
			if err != nil {
				return err
			}
			if err := o.Print(c.OutOrStdout(), shown, shown.Text); err != nil || !shown.Stalled {
				return err
			}
			return cli.ErrDenied
		})
	}
	return c
}

// answerOf reads the Clusters that a Baseline selects. If the user is not allowed to list Clusters, it returns only the
// counts and the failures.
func answerOf(ctx context.Context, h *cli.Hub, b *v1.Baseline) (*answer, error) {
	var clusters v1.ClusterList
	err := h.List(ctx, &clusters, client.InNamespace(b.Namespace))
	switch {
	case apierrors.IsForbidden(err):
		a := decide(b, nil)
		a.Unread = fmt.Sprintf("you may not list the Clusters of %s, so that only failed members are known", b.Namespace)
		return a, nil
	case err != nil:
		return nil, fmt.Errorf("list clusters of %s: %w", b.Namespace, err)
	}
	selected, err := selectedBy(b, clusters.Items)
	if err != nil {
		return nil, err
	}
	return decide(b, selected), nil
}

// selectedBy returns the Clusters that a Baseline selects.
func selectedBy(b *v1.Baseline, all []v1.Cluster) ([]v1.Cluster, error) {
	selects := func(c *v1.Cluster) bool { return c.Name == b.Spec.ClusterName }
	if b.Spec.ClusterSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("read clusterSelector: %w", err)
		}
		selects = func(c *v1.Cluster) bool { return selector.Matches(labels.Set(c.Labels)) }
	}
	return slices.DeleteFunc(all, func(c v1.Cluster) bool { return !selects(&c) }), nil
}

// decide combines the status of a Baseline with the Clusters that it selects. The status names at most ten failures. It
// contains the number of members that have all objects, but not their names.
func decide(b *v1.Baseline, clusters []v1.Cluster) *answer {
	a := &answer{
		baselineRow: rowOf(b), Paused: b.Spec.Paused, Pinned: b.Spec.Revision, CompleteRevision: b.Status.CompleteRevision,
		Stalled: meta.IsStatusConditionTrue(b.Status.Conditions, v1.ConditionStalled),
		Waves:   b.Status.Waves, Failures: b.Status.Failures, Members: []member{}, now: time.Now(),
	}
	count := a.Clusters
	var named []string
	for _, f := range b.Status.Failures {
		if !slices.Contains(named, f.Cluster) {
			named = append(named, f.Cluster)
			a.Members = append(a.Members, member{f.Cluster, memberFailed, f.Message})
		}
	}
	gone, rest := 0, []string{} // the hub counts a member as applied even if it disconnects after that
	for i := range clusters {
		c := &clusters[i]
		connected := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionConnected)
		switch {
		case slices.Contains(named, c.Name):
		case connected == nil:
			a.Members = append(a.Members, member{c.Name, memberAway, "No agent has joined"})
		case connected.Status != metav1.ConditionTrue:
			gone++
			a.Members = append(a.Members, member{c.Name, memberAway, connected.Message})
		default:
			rest = append(rest, c.Name)
		}
	}
	state := memberOther
	switch {
	case int(count.Failed) > len(named): // any other member may have failed
	case int(count.Applied) >= len(rest)+gone:
		state = memberApplied
	case count.Applied == 0:
		state = memberWorking
	}
	for _, name := range rest {
		a.Members = append(a.Members, member{Cluster: name, State: state})
	}
	a.States = map[string]int{memberApplied: int(count.Applied), memberFailed: int(count.Failed),
		unfinished: max(0, int(count.Desired-count.Applied-count.Failed))}
	slices.SortStableFunc(a.Members, func(x, y member) int {
		return cmp.Or(cmp.Compare(rank(x.State), rank(y.State)), cmp.Compare(x.Cluster, y.Cluster))
	})
	return a
}

// rank returns the rank of a member's state. The most urgent state has the lowest rank.
func rank(state string) int {
	return slices.Index([]string{memberFailed, memberAway, memberWorking, memberOther, memberApplied}, state)
}

// Names returns the names of the members.
func (a *answer) Names() []string {
	return cli.Map(a.Members, func(m member) string { return m.Cluster })
}

// Text describes the Baseline, and the members that have failed or are away.
func (a *answer) Text() string {
	var b strings.Builder
	a.describe(&b)
	a.table(&b, func(m member) bool { return m.State == memberFailed || m.State == memberAway })
	return b.String()
}

// Wide describes the Baseline and all of its members.
func (a *answer) Wide() string {
	var b strings.Builder
	a.describe(&b)
	a.table(&b, func(member) bool { return true })
	return b.String()
}

// describe writes a line for each fact.
func (a *answer) describe(b *strings.Builder) {
	line := func(name, format string, words ...any) {
		fmt.Fprintf(b, "%-10s ", name)
		cli.Say(b, format+"\n", words...)
	}
	line("baseline", "%s/%s, with the rights of %s", a.Workspace, a.Name, a.Role)
	line("ready", "%s: %s: %s", a.Ready, a.Reason, a.Message)
	if a.Revision != "" {
		line("revision", "%s, %d objects", a.Revision, a.Objects)
	}
	if a.Pinned != "" {
		line("pinned", "%s: \"kubectl drover baseline rollback %s --undo\" ends it", a.Pinned, cli.Quoted(a.Name))
	}
	if a.CompleteRevision != "" && a.CompleteRevision != a.Revision {
		line("complete", "%s: the last revision that was healthy in all members", a.CompleteRevision)
	}
	var counts []string
	for _, state := range []string{memberApplied, memberFailed, unfinished} {
		if n := a.States[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	line("clusters", "%d: %s", a.Clusters.Desired, cmp.Or(strings.Join(counts, ", "), "none is selected"))
	for _, w := range a.Waves {
		line("wave", "%s: %s%s", w.Name, w.Clusters.Summary, waveDetails(w, a.now))
	}
	if a.Paused {
		line("paused", "no other member begins: \"kubectl drover baseline resume %s\" continues", cli.Quoted(a.Name))
	}
	if a.Unread != "" {
		line("warning", "%s", a.Unread)
	}
}

func waveDetails(w v1.WaveStatus, now time.Time) string {
	var details strings.Builder
	if w.Clusters.Applying > 0 {
		fmt.Fprintf(&details, ", %d at work", w.Clusters.Applying)
	}
	if w.Clusters.Failed > 0 {
		fmt.Fprintf(&details, ", %d failed", w.Clusters.Failed)
	}
	if w.SoakUntil != nil && w.SoakUntil.After(now) {
		fmt.Fprintf(&details, ", soaks for %s", w.SoakUntil.Sub(now).Round(time.Second))
	}
	return details.String()
}

// table writes the failures, and the other members for which shown returns true.
func (a *answer) table(b *strings.Builder, shown func(member) bool) {
	var rows [][]string
	for _, f := range a.Failures {
		rows = append(rows, cli.PlainCells(f.Cluster, memberFailed, f.Object, f.Message))
	}
	for _, m := range a.Members {
		if m.State != memberFailed && shown(m) {
			rows = append(rows, cli.PlainCells(m.Cluster, m.State, "", m.Message))
		}
	}
	if len(rows) > 0 {
		b.WriteString("\n" + cli.Table("CLUSTER\tSTATE\tOBJECT\tMESSAGE", rows))
	}
}
