// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// hubStatus is the output of the command "status".
type hubStatus struct {
	Hub          hubState      `json:"hub"`
	Leader       leaderState   `json:"leader"`
	Agents       *agentCounts  `json:"agents"` // nil if the user is not allowed to read Clusters
	Certificates []certificate `json:"certificates"`
	Providers    []provider    `json:"signInProviders"`
	// Approvals lists the Clusters and Hosts that are not changed until an administrator confirms a restore.
	Approvals []string `json:"pendingApprovals"`
	// Starting lists the parts that the hub lacks because its Deployment was created only recently.
	Starting []string `json:"starting,omitempty"`
	// Problems lists the conditions that require action. Unread lists the parts of the hub that the user is not allowed
	// to read.
	Problems []string `json:"problems"`
	Unread   []string `json:"unread,omitempty"`
}

type hubState struct {
	Server     string `json:"server"`
	URL        string `json:"url,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Image      string `json:"image,omitempty"`
	Replicas   int32  `json:"replicas"`
	Ready      int32  `json:"ready"`
}

// leaderState describes the leader according to the manager's Lease.
type leaderState struct {
	Holder  string    `json:"holder,omitempty"`
	Renewed time.Time `json:"renewed,omitzero"`
	// Alive is true if the Lease has not expired.
	Alive bool `json:"alive"`
}

type agentCounts struct {
	Total    int            `json:"total"`
	States   map[string]int `json:"states"`
	Versions map[string]int `json:"versions"`
}

type certificate struct {
	Name string    `json:"name"`
	Ends time.Time `json:"ends"`
}

type provider struct {
	Name    string `json:"name"`
	Ready   string `json:"ready"`
	Message string `json:"message,omitempty"`
}

// NewStatus returns the command "status".
func NewStatus(o *cli.Options) *cobra.Command {
	namespace, file := "", ""
	c := &cobra.Command{
		Use: "status", Short: "Show the state of the hub, and write a bundle for support",
		Long: `Show the state of the hub: its version, replicas and leader, the agents, the certificates, the
providers for sign-in, and the approvals that it waits for. The leader is known by its Lease: if no
manager runs, no one notices that members are lost, and "kubectl get clusters" is out of date.

With --bundle, the command also writes a file for support, a tar archive with gzip. It has Drover's
objects and the events of their namespaces, but no Secrets, no annotations, and no texts that other
people chose, except names: other strings are replaced.

While the manager's Deployment is less than 2 minutes old, replicas that are not ready, a missing
Lease and missing certificates are listed as "not yet", and are no problems.

Exit codes: 0 no problem; 1 there are problems; 2 an error occurred, or you may not read the Lease
or the Clusters.`,
		Example: "  kubectl drover status\n  kubectl drover status -o json\n  kubectl drover status --bundle drover.tar.gz",
		Args:    cli.NoArguments,
		PreRunE: func(*cobra.Command, []string) error { return o.CheckOutput() },
		RunE: func(c *cobra.Command, _ []string) error {
			return o.ReadHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
				r := &statusReader{Hub: h, namespace: namespace}
				r.status.Hub.URL, r.ca = o.Proxy()
				if err := r.read(ctx); err != nil {
					return err
				}
				if err := r.bundle(ctx, file, c.ErrOrStderr()); err != nil {
					return err
				}
				if err := o.Print(c.OutOrStdout(), &r.status, r.status.text); err != nil {
					return err
				}
				if len(r.status.Problems) > 0 {
					return cli.ErrDenied
				}
				return r.unsure()
			})
		},
	}
	c.Flags().StringVar(&namespace, "manager-namespace", "drover-system", "The namespace of the manager")
	c.Flags().StringVar(&file, "bundle", "", "Also write a file for support, which must not exist")
	cli.Complete(c, "bundle", cli.CompleteFiles)
	cli.Complete(c, "manager-namespace", o.CompleteWorkspaces)
	o.BindOutput(c)
	return c
}

// bundle writes a file for support, unless its name is empty.
func (r *statusReader) bundle(ctx context.Context, file string, says io.Writer) error {
	if file == "" {
		return nil
	}
	if err := writeBundle(ctx, r.Hub, file, r.namespace, &r.status); err != nil {
		return err
	}
	fmt.Fprintf(says, "Wrote %s.\n", file)
	return nil
}

// text formats the state for users.
func (s *hubStatus) text() string {
	var b strings.Builder
	url := ""
	if s.Hub.URL != "" {
		url = ", proxy " + s.Hub.URL
	}
	cli.Say(&b, "hub            %s, Kubernetes %s%s\n", s.Hub.Server, cmp.Or(s.Hub.Kubernetes, "unknown"), url)
	if s.Hub.Image == "" { // there is no Deployment, or it cannot be read
		cli.Say(&b, "manager        unknown\n")
	} else {
		cli.Say(&b, "manager        %d of %d replicas ready, image %s\n", s.Hub.Ready, s.Hub.Replicas, s.Hub.Image)
	}
	switch {
	case s.Leader.Alive:
		cli.Say(&b, "leader         %s, seen %s\n", s.Leader.Holder, s.Leader.Renewed.Local().Format(time.RFC3339))
	case !s.Leader.Renewed.IsZero():
		cli.Say(&b, "leader         none since %s\n", s.Leader.Renewed.Local().Format(time.RFC3339))
	default:
		cli.Say(&b, "leader         unknown\n")
	}
	if s.Agents == nil {
		cli.Say(&b, "agents         unknown\n")
	} else {
		cli.Say(&b, "agents         %d: %s\n", s.Agents.Total, counted(s.Agents.States, agentStateOrder()))
		if len(s.Agents.Versions) > 0 {
			cli.Say(&b, "  versions     %s\n", counted(s.Agents.Versions, nil))
		}
	}
	for _, c := range s.Certificates {
		cli.Say(&b, "certificate    %s: until %s\n", c.Name, c.Ends.Local().Format(cli.TimeFormat))
	}
	for _, p := range s.Providers {
		cli.Say(&b, "sign-in        %s: ready %s\n", p.Name, p.Ready)
	}
	for _, a := range s.Approvals {
		cli.Say(&b, "approval       %s\n", a)
	}
	for _, line := range s.Starting {
		cli.Say(&b, "not yet        %s\n", line)
	}
	for _, u := range s.Unread {
		cli.Say(&b, "not read       %s\n", u)
	}
	b.WriteString("\n" + s.conclusion())
	return b.String()
}

// conclusion returns the problems as text, or a text that says that none were found.
func (s *hubStatus) conclusion() string {
	if len(s.Problems) > 0 {
		var b strings.Builder
		for _, p := range s.Problems {
			cli.Say(&b, "problem: %s\n", p)
		}
		return b.String()
	}
	found := "No problems were found.\n"
	if len(s.Unread) > 0 {
		found = "No problems were found in the parts that were read.\n"
	}
	if len(s.Starting) > 0 {
		found += fmt.Sprintf("The manager's Deployment is less than %.0f minutes old: this is normal.\n",
			startLimit.Minutes())
	}
	return found
}
