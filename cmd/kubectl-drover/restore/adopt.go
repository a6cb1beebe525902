// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore contains the commands that recover members after the hub was restored from a backup.
//
// They adopt agents, confirm changes, and repeat revocations that the hub has lost.
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

// NewAdopt returns the command "adopt".
func NewAdopt(o *cli.Options) *cobra.Command {
	var all, yes bool
	c := &cobra.Command{
		Use:   "adopt CLUSTER... | --all",
		Short: "Keep the agents of Clusters that were restored from a backup",
		Long: `Keep the agents of Clusters that were restored from a backup.

To Kubernetes, a restored Cluster is a new object. Its agent joined the old object, so the hub
refuses the agent. This command registers the agent of the restored Secret CLUSTER-agent with the
new object. Only the agent with that key, in that member, is accepted. Nothing is applied in the
member.

The list includes agents that were revoked after the backup, unless you have run "kubectl drover
revoked" before. Check the list first: an adopted agent has all rights of the Cluster's agent. You
need the rights to update and delete clusters/agent, and to update the Secret.

With --all, the command lists the Clusters of all workspaces, or of the workspace of --workspace,
and changes nothing without --yes. You can run it again: it does not change an agent that already
belongs to its Cluster.

Exit codes: 0 every agent that can be adopted is adopted; 2 an error occurred, or the agent of a
named Cluster cannot be adopted.`,
		Example: `  kubectl drover adopt prod-eu -w team-a
  kubectl drover adopt --all
  kubectl drover adopt --all --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return errors.New("no Clusters are given: name Clusters, or use --all")
			}
			return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
				found, err := candidates(ctx, h, o.Workspace, names)
				if err != nil {
					return err
				}
				return adopt(ctx, h, c.OutOrStdout(), found, adoption{act: yes || !all, strict: !all})
			})
		},
		ValidArgsFunction: o.CompleteNames("Cluster"),
	}
	bindWorkspace(c, o)
	c.Flags().BoolVar(&all, "all", false, "Adopt the agents of all Clusters of the hub")
	c.Flags().BoolVar(&yes, "yes", false, "With --all, adopt the listed agents")
	return c
}

// bindWorkspace adds the flag --workspace. With --all, all workspaces are selected by default.
func bindWorkspace(c *cobra.Command, o *cli.Options) {
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "",
		"The workspace, a namespace of the hub (default: the namespace of the kubeconfig's context, or all with --all)")
	cli.Complete(c, "workspace", o.CompleteWorkspaces)
}

// candidate is a Cluster whose agent may be adopted.
type candidate struct {
	cluster *v1.Cluster
	secret  *corev1.Secret
	registration.Adoption
}

// candidates returns the Clusters with the given names in the hub's workspace. If no names are given, it returns all
// Clusters in workspace, or in all workspaces if workspace is "".
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
			return nil, fmt.Errorf("read the agent's identity of Cluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
		}
		found[i] = candidate{cluster, secret, registration.DecideAdoption(cluster, secret)}
	}
	return found, nil
}

// adoption specifies how to adopt candidates.
type adoption struct {
	// act is false if the candidates are only listed.
	act bool
	// strict causes an error if a Cluster cannot be adopted.
	strict bool
}

// adopt lists the candidates and adopts them.
func adopt(ctx context.Context, h *cli.Hub, out io.Writer, found []candidate, how adoption) error {
	if err := list(out, found); err != nil {
		return err
	}
	var errs []error
	adopted, open := 0, 0
	for _, c := range found {
		switch {
		case c.Problem != "" && how.strict:
			errs = append(errs, fmt.Errorf("adopt the agent of Cluster %s/%s: %s", c.cluster.Namespace, c.cluster.Name, c.Problem))
		case c.Identity == nil:
		case !how.act:
			open++
		default:
			registration.WriteIdentity(c.secret, c.cluster, *c.Identity)
			if err := h.Update(ctx, c.secret); err != nil { // fails if the Secret has changed since it was listed
				errs = append(errs, fmt.Errorf("adopt the agent of Cluster %s/%s: %w", c.cluster.Namespace, c.cluster.Name, err))
				continue
			}
			adopted++
		}
	}
	text := fmt.Sprintf("Adopted: %d. A refused agent tries again within five minutes.", adopted)
	if open > 0 {
		text = fmt.Sprintf("Nothing was changed. To adopt the %d agents above, run the command again with --yes.", open)
	} else if adopted == 0 {
		text = "Nothing was changed."
	}
	_, err := fmt.Fprintln(out, "\n"+text)
	return errors.Join(append(errs, err)...)
}

// list prints which agents would be adopted, and the reasons why other agents would not be adopted.
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
