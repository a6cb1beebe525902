// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore brings members back after the hub was restored from a backup: it adopts agents, confirms changes, and
// repeats revocations that the hub has forgotten.
package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/registration"
)

// NewAdopt makes the command "adopt".
func NewAdopt(o *cli.Options) *cobra.Command {
	var all, yes bool
	c := &cobra.Command{
		Use:   "adopt CLUSTER... | --all",
		Short: "Keep the agents of Clusters that were restored from a backup",
		Long: `Keep the agents of Clusters that were restored from a backup.

A restored Cluster is a new object for Kubernetes, and its agent joined the old one, so the hub refuses it. This command names the agent in the restored
Secret CLUSTER-agent as the agent of the new object: the one with that key, in that member, and no other. Nothing is applied in the member.
Agents that were revoked after the backup are listed, too: run "kubectl drover revoked" before, and they are not. Check the list before: what is adopted has all rights of that Cluster's agent. It takes update and delete on clusters/agent, and update on the Secret.

With --all it lists the Clusters of all workspaces, or of the one that --workspace names, and changes nothing without --yes. It can be run again: an agent that
is the Cluster's already is left alone.

Exit codes: 0 all that could be adopted are, 2 an error, or a Cluster that was named could not be adopted.`,
		Example: `  kubectl drover adopt prod-eu -w team-a
  kubectl drover adopt --all
  kubectl drover adopt --all --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return errors.New("it is not said what to adopt: name Clusters, or give --all")
			}
			return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
				found, err := candidates(ctx, h, o.Workspace, names)
				if err != nil {
					return err
				}
				return adopt(ctx, h, c.OutOrStdout(), found, yes || !all, !all)
			})
		},
		ValidArgsFunction: o.CompleteNames("Cluster"),
	}
	bindWorkspace(c, o)
	c.Flags().BoolVar(&all, "all", false, "All Clusters that the hub has")
	c.Flags().BoolVar(&yes, "yes", false, "With --all: adopt what is listed")
	return c
}

// bindWorkspace adds the flag that names the workspace, where --all means all workspaces without it.
func bindWorkspace(c *cobra.Command, o *cli.Options) {
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "",
		"The workspace: a namespace of the hub (default: that of the kubeconfig's context; with --all, all)")
	cli.Complete(c, "workspace", o.CompleteWorkspaces)
}

// candidate is a Cluster whose agent may be adopted.
type candidate struct {
	cluster *v1.Cluster
	secret  *corev1.Secret
	registration.Adoption
}

// candidates returns the Clusters with these names in the hub's workspace. Without names it returns all Clusters of a
// workspace, or of all workspaces if workspace is "".
func candidates(ctx context.Context, h *cli.Hub, workspace string, names []string) ([]candidate, error) {
	var clusters v1.ClusterList
	if len(names) == 0 {
		if err := h.List(ctx, &clusters, client.InNamespace(workspace)); err != nil {
			return nil, fmt.Errorf("list clusters: %w", err)
		}
	}
	for _, name := range names {
		cluster := v1.Cluster{}
		if err := h.Get(ctx, types.NamespacedName{Namespace: h.Workspace, Name: name}, &cluster); err != nil {
			return nil, fmt.Errorf("read Cluster %s/%s: %w", h.Workspace, name, err)
		}
		clusters.Items = append(clusters.Items, cluster)
	}
	found := make([]candidate, len(clusters.Items))
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		secret := &corev1.Secret{}
		if err := h.Get(ctx, registration.AgentSecret(client.ObjectKeyFromObject(cluster)), secret); apierrors.IsNotFound(err) {
			secret = nil
		} else if err != nil {
			return nil, fmt.Errorf("read who the agent of Cluster %s/%s is: %w", cluster.Namespace, cluster.Name, err)
		}
		found[i] = candidate{cluster, secret, registration.DecideAdoption(cluster, secret)}
	}
	return found, nil
}

// adopt lists the candidates, and adopts them if act is set. With strict, a Cluster that cannot be adopted is an error.
func adopt(ctx context.Context, h *cli.Hub, out io.Writer, found []candidate, act, strict bool) error {
	if err := list(out, found); err != nil {
		return err
	}
	var errs []error
	adopted, open := 0, 0
	for _, c := range found {
		switch {
		case c.Problem != "" && strict:
			errs = append(errs, fmt.Errorf("adopt the agent of Cluster %s/%s: %s", c.cluster.Namespace, c.cluster.Name, c.Problem))
		case c.Identity == nil:
		case !act:
			open++
		default:
			registration.WriteIdentity(c.secret, c.cluster, *c.Identity)
			if err := h.Update(ctx, c.secret); err != nil { // it fails if the Secret has changed since it was listed
				errs = append(errs, fmt.Errorf("adopt the agent of Cluster %s/%s: %w", c.cluster.Namespace, c.cluster.Name, err))
				continue
			}
			adopted++
		}
	}
	text := fmt.Sprintf("Adopted: %d. A refused agent tries again within five minutes.", adopted)
	if open > 0 {
		text = fmt.Sprintf("Nothing was changed. To adopt the %d above, run it again with --yes.", open)
	} else if adopted == 0 {
		text = "Nothing was changed."
	}
	_, err := fmt.Fprintln(out, "\n"+text)
	return errors.Join(append(errs, err)...)
}

// list prints which agents would be adopted, and why the others would not.
func list(out io.Writer, found []candidate) error {
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cluster.Namespace, b.cluster.Namespace), cmp.Compare(a.cluster.Name, b.cluster.Name))
	})
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "WORKSPACE\tCLUSTER\tADOPT\tKEY\tMEMBER\tREMARK")
	for _, c := range found {
		what, key, member := "no", "-", "-"
		remark := cmp.Or(cli.Visible(c.Problem), "its agent already")
		if c.Identity != nil {
			what, key, member = "yes", registration.KeyID(c.Identity.PublicKey), c.Identity.ClusterUID
			remark = "joined " + c.Identity.Joined.UTC().Format(cli.TimeFormat)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", c.cluster.Namespace, c.cluster.Name, what, key, member, remark)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the list: %w", err)
	}
	return nil
}
