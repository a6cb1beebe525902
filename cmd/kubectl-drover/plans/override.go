// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

// overrideOptions holds the flags of "plan override".
type overrideOptions struct {
	*cli.Options
	checks, clusters []string
	reason, by       string
	all, yes         bool
}

func newOverride(o *cli.Options) *cobra.Command {
	a := &overrideOptions{Options: o}
	c := &cobra.Command{
		Use: "override NAME --check CHECK --reason TEXT", Short: "Override upgrade checks of a plan",
		Long: `Override upgrade checks of a plan, so that it starts although they have findings. It adds entries
to spec.overrides. You need the rights to update and to override the Plan.

An override applies to the clusters in which the checks have findings now, to the clusters of --cluster,
or to all clusters with --all. It counts only for the plan as it is now. Any change except to paused,
approvals and overrides makes it expire. The status and an event record the user, the time and the
reason.`,
		Example: `  kubectl drover plan override k3s-server --check NodesReady --reason "node 7 is being replaced"`,
		Args:    cli.Arguments(1, "NAME"), ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveNoFileComp),
	}
	change := cli.BindChange(c)
	cli.BindYes(c, &a.yes)
	c.Flags().StringSliceVar(&a.checks, "check", nil, "The checks, separated by commas")
	c.Flags().StringSliceVar(&a.clusters, "cluster", nil, "The clusters, separated by commas (default: all with findings)")
	c.Flags().BoolVar(&a.all, "all", false, "Override the checks in all clusters of the plan")
	c.MarkFlagsMutuallyExclusive("cluster", "all")
	c.Flags().StringVar(&a.reason, "reason", "", "Why the findings can be ignored, at most 256 characters")
	c.Flags().StringVar(&a.by, "overridden-by", "", "The user who overrides the checks (default: you)")
	cli.Complete(c, "check", a.completeChecks)
	cli.Complete(c, "reason", cobra.NoFileCompletions)
	cli.Complete(c, "overridden-by", cobra.NoFileCompletions)
	c.RunE = func(c *cobra.Command, args []string) error { return a.override(c, change, args[0]) }
	return c
}

func (a *overrideOptions) override(c *cobra.Command, change *cli.Change, name string) error {
	if len(a.checks) == 0 || strings.TrimSpace(a.reason) == "" {
		return errors.New("set --check and --reason: they say which findings are ignored, and why")
	}
	var plan *v1.Plan
	err := a.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) (err error) {
		if plan, err = readPlan(ctx, h, name); err != nil {
			return err
		}
		if err = errors.Join(overridable(plan, a.checks), a.choose(plan)); err == nil && a.by == "" {
			a.by, err = cli.UserName(ctx, h)
		}
		return err
	})
	if err != nil {
		return err
	}
	if change.Real() {
		if err := cli.Confirm(c, a.yes, describeOverride(plan, a.checks, a.clusters, a.reason)); err != nil {
			return err
		}
	}
	return a.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
		before, revision := plan.DeepCopy(), plan.Status.Gates.Revision
		add := func(p *v1.Plan) {
			setOverrides(p, a.checks, v1.Override{Revision: revision, Clusters: a.clusters, OverriddenBy: a.by,
				Reason: strings.TrimSpace(a.reason)})
		}
		add(plan)
		return change.Make(h, plan, "overrides "+strings.Join(a.checks, ", "), func(w client.Client) error {
			return cli.Decide(ctx, h, w, "plan", before, plan, add)
		})
	})
}

// choose sets the clusters in which the checks are overridden. By default, these are the clusters with findings. An
// override in a cluster that has been overridden before is kept.
func (a *overrideOptions) choose(plan *v1.Plan) error {
	if a.all || plan.Status.Gates == nil {
		return nil
	}
	if len(a.clusters) == 0 {
		if len(plan.Status.Gates.Findings) >= v1.MaxFindings {
			return fmt.Errorf("the status of plan %s/%s lists only the first %d findings: name the clusters with --cluster, or "+
				"use --all", plan.Namespace, plan.Name, v1.MaxFindings)
		}
		for _, f := range plan.Status.Gates.Findings {
			switch {
			case !slices.Contains(a.checks, f.Check):
			case f.Cluster == "": // the plan upgrades the hub's own cluster
				a.clusters = nil
				return nil
			default:
				a.clusters = append(a.clusters, f.Cluster)
			}
		}
	}
	for _, o := range plan.Status.Gates.Overrides {
		switch {
		case !slices.Contains(a.checks, o.Check):
		case len(o.Clusters) == 0: // the check is overridden in all clusters
			a.clusters = nil
			return nil
		default:
			a.clusters = append(a.clusters, o.Clusters...)
		}
	}
	if len(a.clusters) == 0 {
		return fmt.Errorf("the status of plan %s/%s does not list the clusters in which %s has findings: name them with "+
			"--cluster, or use --all", plan.Namespace, plan.Name, strings.Join(a.checks, ", "))
	}
	slices.Sort(a.clusters)
	if a.clusters = slices.Compact(a.clusters); len(a.clusters) > v1.MaxOverrideClusters {
		return fmt.Errorf("an override can list %d clusters, and not %d: use --all", v1.MaxOverrideClusters, len(a.clusters))
	}
	return nil
}

// overridable returns an error if the checks of a plan cannot be overridden.
func overridable(plan *v1.Plan, checks []string) error {
	if err := cli.Observed("plan", plan, plan.Status.ObservedGeneration); err != nil {
		return err
	}
	if slices.Contains(checks, v1.CheckUpgradeChecks) {
		return fmt.Errorf("the check %s cannot be overridden, because nothing was checked: fix the cause, or set "+
			"spec.gates.upgradeChecks to Disabled", v1.CheckUpgradeChecks)
	}
	known := checksOf(plan)
	all := plan.Status.Gates != nil && complete(plan.Status.Gates.Findings)
	for _, check := range checks {
		if !slices.Contains(known, check) && (all || len(known) == 0 || !slices.Contains(upgradecheck.Checks(), check)) {
			hint := "there is nothing to override"
			if len(known) > 0 {
				hint = "use one of " + cli.Plain(strings.Join(known, ", "))
			}
			return fmt.Errorf("the check %q of plan %s/%s has no findings: %s", cli.Plain(check), plan.Namespace, plan.Name,
				hint)
		}
	}
	if plan.Status.Gates.Revision == "" {
		_, message := stateOf(plan)
		return fmt.Errorf("plan %s/%s has no revision to override: %s", plan.Namespace, plan.Name, message)
	}
	return nil
}

// complete reports whether a status lists all findings.
func complete(findings []v1.UpgradeFinding) bool {
	of := map[string]int{}
	for i := range findings {
		name := findings[i].Cluster
		if of[name]++; name != "" && of[name] >= v1.MaxMemberFindings {
			return false
		}
	}
	return len(findings) < v1.MaxFindings
}

// checksOf returns the names of the checks that have findings and can be overridden, or are overridden.
func checksOf(plan *v1.Plan) []string {
	if plan.Status.Gates == nil {
		return nil
	}
	var names []string
	for _, f := range plan.Status.Gates.Findings {
		names = append(names, f.Check)
	}
	for _, o := range plan.Status.Gates.Overrides {
		names = append(names, o.Check)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == v1.CheckUpgradeChecks })
}

// describeOverride returns the question that the user has to confirm.
func describeOverride(plan *v1.Plan, checks, clusters []string, reason string) string {
	var found []string
	for _, f := range plan.Status.Gates.Findings {
		if slices.Contains(checks, f.Check) {
			found = append(found, finding(&f))
		}
	}
	where := "all its clusters"
	if len(clusters) > 0 {
		where = "the clusters " + cli.Plain(strings.Join(clusters, ", "))
	}
	return fmt.Sprintf("override %s of plan %s/%s on %s, for revision %s, because %q. Findings so far: %s",
		strings.Join(checks, ", "), plan.Namespace, plan.Name, where, plan.Status.Gates.Revision, reason,
		strings.Join(found, "; "))
}

// finding describes a finding in one line.
func finding(f *v1.UpgradeFinding) string {
	text := place(f.Cluster, f.Check)
	if f.Object != "" {
		text += " " + cli.Plain(f.Object)
	}
	return text + ": " + cli.Plain(f.Cause)
}

// setOverrides adds overrides of some checks to a plan. It replaces earlier overrides of the same checks, and removes
// overrides of other revisions, because the number of overrides is limited.
func setOverrides(plan *v1.Plan, checks []string, like v1.Override) {
	plan.Spec.Overrides = slices.DeleteFunc(slices.Clone(plan.Spec.Overrides), func(o v1.Override) bool {
		return o.Revision != like.Revision || slices.Contains(checks, o.Check)
	})
	for _, like.Check = range checks {
		plan.Spec.Overrides = append(plan.Spec.Overrides, like)
	}
}

// completeChecks completes --check with the checks that have findings.
func (a *overrideOptions) completeChecks(c *cobra.Command, args []string, start string) ([]string,
	cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
	defer cancel()
	var names []string
	if h, err := a.HubToRead(); err == nil && len(args) == 1 {
		if plan, err := readPlan(ctx, h, args[0]); err == nil {
			names = checksOf(plan)
		}
	}
	return cli.Beginning(start, names)
}
