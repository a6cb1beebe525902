// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// revisionList is the output of the command "baseline history".
type revisionList struct {
	Workspace string        `json:"workspace"`
	Baseline  string        `json:"baseline"`
	Revisions []revisionRow `json:"revisions"`
}

type revisionRow struct {
	Revision string     `json:"revision"`
	Role     string     `json:"role,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Objects  *int32     `json:"objects,omitempty"`
	// Current is true for the revision that members should have, and Pinned is true for the revision in spec.revision.
	Current bool `json:"current"`
	Pinned  bool `json:"pinned"`
	// Complete is true for the last revision that was healthy in every member that took part.
	Complete bool `json:"complete"`
	// Clusters is the number of members that have the revision, and the number of members that should have it. Both
	// numbers are known only for the current revision.
	Clusters string `json:"clusters,omitempty"`
}

func newHistory(o *cli.Options) *cobra.Command {
	c := named(o, &cobra.Command{
		Use: "history NAME", Short: "List the revisions of a Baseline that the hub keeps",
		Long: `List the revisions of a Baseline that the hub keeps, with the newest first. "kubectl drover baseline
rollback" goes back to one of them.

The state of a revision is one or more of:

  current   members should have it; CLUSTERS says how many do
  complete  the last revision that was healthy in every member that took part; members that join
            during a rollout receive it
  pinned    spec.revision names it, so that members do not follow manifests and from`,
		Example: "  kubectl drover baseline history flux -w team-a",
		PreRunE: func(*cobra.Command, []string) error { return o.CheckListOutput() },
	})
	o.BindListOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.ReadHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
			b, err := readBaseline(ctx, h, args[0])
			if err != nil {
				return err
			}
			list := revisionsOf(b)
			return o.Print(c.OutOrStdout(), list, list.Text)
		})
	}
	return c
}

func revisionsOf(b *v1.Baseline) revisionList {
	list := revisionList{Workspace: b.Namespace, Baseline: b.Name, Revisions: []revisionRow{}}
	for _, h := range b.Status.History {
		since, objects := h.Since.UTC(), h.Objects
		list.Revisions = append(list.Revisions,
			revisionRow{Revision: h.Revision, Role: h.RoleTemplateName, Since: &since, Objects: &objects})
	}
	complete := b.Status.CompleteRevision // the hub keeps it longer than its entry in the history
	if complete != "" && !slices.Contains(list.Names(), complete) {
		list.Revisions = append(list.Revisions, revisionRow{Revision: complete})
	}
	for i := range list.Revisions {
		r := &list.Revisions[i]
		r.Current, r.Pinned = r.Revision == b.Status.Revision, r.Revision == b.Spec.Revision
		if r.Complete = r.Revision == complete; r.Current {
			r.Clusters = countOf(b).Summary
		}
	}
	return list
}

// Names returns the revisions.
func (l revisionList) Names() []string {
	return cli.Map(l.Revisions, func(r revisionRow) string { return r.Revision })
}

// Text formats a table for users.
func (l revisionList) Text() string {
	if len(l.Revisions) == 0 {
		return fmt.Sprintf("The hub keeps no revision of baseline %s/%s yet.\n", cli.Plain(l.Workspace),
			cli.Plain(l.Baseline))
	}
	var rows [][]string
	for _, r := range l.Revisions {
		since, objects := "", ""
		if r.Since != nil {
			since = r.Since.Format(cli.TimeFormat)
		}
		if r.Objects != nil {
			objects = strconv.Itoa(int(*r.Objects))
		}
		rows = append(rows, cli.PlainCells(r.Revision, r.Role, since, objects, r.state(), r.Clusters))
	}
	return cli.Table("REVISION\tROLE\tSINCE\tOBJECTS\tSTATE\tCLUSTERS", rows)
}

func (r revisionRow) state() string {
	var words []string
	for _, state := range []struct {
		is   bool
		word string
	}{{r.Current, "current"}, {r.Complete, "complete"}, {r.Pinned, "pinned"}} {
		if state.is {
			words = append(words, state.word)
		}
	}
	return strings.Join(words, ",")
}

// rollback holds the flags of "baseline rollback".
type rollback struct {
	*cli.Change

	to   string
	undo bool
	yes  bool
}

func newRollback(o *cli.Options) *cobra.Command {
	r := &rollback{}
	c := named(o, &cobra.Command{
		Use: "rollback NAME", Short: "Have members go back to an earlier revision of a Baseline",
		Long: `Have members go back to an earlier revision of a Baseline, in the waves of its rollout. Objects that
only the newer revision has are deleted from members. The command sets spec.revision and
spec.roleTemplateName, which requires the verb "bind" on the role template of the revision.

Without --to, the target is the last complete revision, or the previous one if the current revision
is complete. While spec.revision is set, members do not follow manifests and from: after you have
repaired these, --undo unsets it, and keeps the role template. If a GitOps tool owns the Baseline, change it there:
--dry-run=client -o yaml prints the object.`,
		Example: `  kubectl drover baseline history flux -w team-a
  kubectl drover baseline rollback flux -w team-a
  kubectl drover baseline rollback flux -w team-a --to 0f3c6e1ab29d5c47 --dry-run=client -o yaml
  kubectl drover baseline rollback flux -w team-a --undo`,
	})
	r.Change = cli.BindChange(c)
	cli.BindYes(c, &r.yes)
	c.Flags().StringVar(&r.to, "to", "", "The revision, from \"kubectl drover baseline history\"")
	c.Flags().BoolVar(&r.undo, "undo", false, "Have members follow manifests and from again")
	c.MarkFlagsMutuallyExclusive("to", "undo")
	cli.Complete(c, "to", func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		return cli.Beginning(start, knownRevisions(c.Context(), o, args))
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		h, err := o.Hub()
		if err != nil {
			return err
		}
		return r.run(c, h, args[0])
	}
	return c
}

// knownRevisions returns the revisions of a Baseline for completion, or none if the Baseline cannot be read.
func knownRevisions(ctx context.Context, o *cli.Options, args []string) []string {
	ctx, cancel := context.WithTimeout(ctx, cli.CompletionLimit)
	defer cancel()
	h, err := o.HubToRead()
	if err != nil || len(args) == 0 {
		return nil
	}
	b, err := readBaseline(ctx, h, args[0])
	if err != nil {
		return nil
	}
	return revisionsOf(b).Names()
}

func (r *rollback) run(c *cobra.Command, h *cli.Hub, name string) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	b, err := readBaseline(ctx, h, name)
	if err != nil {
		return err
	}
	target, err := r.target(b)
	if err != nil {
		return err
	}
	was, role, done := b.DeepCopy(), roleOf(b, target), "rolled back to revision "+cli.Plain(target)
	unchanged := b.Spec.Revision == target && b.Spec.RoleTemplateName == role
	switch {
	case unchanged:
		done = "unchanged"
	case target == "":
		done = "follows its manifests again"
	}
	if r.Real() && !unchanged {
		if err := cli.Confirm(c, r.yes, question(b, target, role)); err != nil {
			return err
		}
	}
	ctx, cancel = cli.Bounded(c.Context()) // the time that the user takes to answer does not count
	defer cancel()
	b.Spec.Revision, b.Spec.RoleTemplateName = target, role // the hub refuses a revision of another role template
	return r.Make(h, b, done, func(w client.Client) error { return w.Patch(ctx, b, client.MergeFrom(was)) })
}

// roleOf returns the role template of a revision. It is the role template in the spec if the history does not name one.
func roleOf(b *v1.Baseline, revision string) string {
	for _, row := range revisionsOf(b).Revisions {
		if row.Revision == revision && row.Role != "" {
			return row.Role
		}
	}
	return b.Spec.RoleTemplateName
}

// question describes the effect of a change to spec.revision and spec.roleTemplateName.
func question(b *v1.Baseline, target, role string) string {
	what := "the objects in manifests and from"
	if target != "" {
		what = "revision " + target
	}
	return fmt.Sprintf("have %d members keep %s of baseline %s/%s with the rights of %s instead of revision %s, and "+
		"delete the objects that only the latter has", countOf(b).Desired, what, b.Namespace, b.Name, role,
		b.Status.Revision)
}

// target returns the revision that members go back to, or "" to follow the manifests again.
func (r *rollback) target(b *v1.Baseline) (string, error) {
	known := revisionsOf(b).Names()
	advice := fmt.Sprintf("choose one with --to: \"kubectl drover baseline history %s\" lists them", cli.Quoted(b.Name))
	ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady)
	switch {
	case r.undo:
		return "", nil
	case r.to != "" && !slices.Contains(known, r.to):
		return "", fmt.Errorf("the hub does not keep revision %s: %s", cli.Visible(r.to), advice)
	case r.to != "":
		return r.to, nil
	case b.Spec.Revision != "":
		return "", fmt.Errorf("members already keep revision %s, because spec.revision is set: undo it with --undo, or %s",
			cli.Plain(b.Spec.Revision), advice)
	case b.Status.ObservedGeneration != b.Generation:
		return "", errors.New("the hub has not looked at the last change of the Baseline yet: wait, or " + advice)
	case ready != nil && slices.Contains(withoutContent(), ready.Reason):
		return "", fmt.Errorf("members keep revision %s, because of a mistake in the Baseline (%s): %s",
			cli.Plain(b.Status.Revision), cli.Plain(ready.Reason), advice)
	}
	if complete := b.Status.CompleteRevision; complete != "" && complete != b.Status.Revision {
		return complete, nil
	}
	at := slices.Index(known, b.Status.Revision)
	if at < 0 || at+1 >= len(known) {
		return "", fmt.Errorf("the hub keeps no earlier revision of baseline %s/%s", b.Namespace, b.Name)
	}
	return known[at+1], nil
}

// withoutContent returns the reasons that a Ready condition has if the Baseline has no new revision. In that case,
// members keep the current revision.
func withoutContent() []string {
	return []string{
		v1.ReasonInvalidManifests, v1.ReasonSourceNotFound, v1.ReasonSecretRefused, v1.ReasonRevisionNotFound,
	}
}
