// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

func newHost(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "host", Short: "List Hosts, have machines join as them, see what failed on them, and give them back", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newHostList(o), newHostJoin(o), newHostLogs(o), newHostClean(o), newHostRelease(o))
	return c
}

// hostList is what "host list" prints.
type hostList struct {
	Hosts []hostRow `json:"hosts"`
}

type hostRow struct {
	Workspace string `json:"workspace"`
	Name      string `json:"name"`
	State     string `json:"state"`
	Ready     string `json:"ready"`
	Reason    string `json:"reason,omitempty"`
	OS        string `json:"os,omitempty"`
	Arch      string `json:"arch,omitempty"`
	Agent     string `json:"agent,omitempty"`
	// Consumer is the kind and name of what has taken the Host.
	Consumer string `json:"consumer,omitempty"`
	// Message says more of a Host that is not ready.
	Message string `json:"message,omitempty"`
}

func newHostList(o *options) *cobra.Command {
	everywhere := false
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List Hosts with their state", Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return o.checkOutput() },
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := bounded(c.Context())
			defer cancel()
			hub, err := o.hub()
			if err != nil {
				return err
			}
			if everywhere {
				hub.workspace = ""
			}
			list, err := hub.hosts(ctx)
			if err != nil {
				return err
			}
			return o.print(c.OutOrStdout(), list, list.text)
		},
	}
	o.bindWorkspace(c)
	c.Flags().BoolVarP(&everywhere, "all-workspaces", "A", false, "All workspaces")
	c.Flags().StringVarP(&o.output, "output", "o", outputText, "The output: text, json or yaml")
	complete(c, "output", offer(outputText, outputJSON, outputYAML))
	return c
}

// bindWorkspace adds the flag that names the workspace.
func (o *options) bindWorkspace(c *cobra.Command) {
	c.Flags().StringVarP(&o.workspace, "workspace", "w", "", "The workspace: a namespace of the hub (default: that of the kubeconfig's context)")
	complete(c, "workspace", o.completeWorkspaces)
}

// hosts reads the Hosts of a workspace, or of all if it is empty.
func (h *hubClient) hosts(ctx context.Context) (hostList, error) {
	var hosts v1.HostList
	if err := h.List(ctx, &hosts, client.InNamespace(h.workspace)); err != nil {
		return hostList{}, fmt.Errorf("list hosts of %s: %w", cmp.Or(h.workspace, "all workspaces"), err)
	}
	list := hostList{Hosts: []hostRow{}}
	for i := range hosts.Items {
		host := &hosts.Items[i]
		row := hostRow{Workspace: host.Namespace, Name: host.Name, State: string(host.Status.State), Ready: "Unknown", Agent: host.Status.AgentVersion}
		if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); ready != nil {
			if row.Ready, row.Reason = string(ready.Status), ready.Reason; row.Ready != "True" {
				row.Message = ready.Message
			}
		}
		if held := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionRestoreConfirmed); held != nil {
			row.Reason, row.Message = held.Reason, held.Message
		}
		if ref := host.Spec.ConsumerRef; ref != nil {
			row.Consumer = ref.Kind + "/" + ref.Name
		}
		if m := host.Status.Machine; m != nil {
			row.OS, row.Arch = m.OS, m.Architecture
		}
		list.Hosts = append(list.Hosts, row)
	}
	slices.SortFunc(list.Hosts, func(a, b hostRow) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// text is the table for a person.
func (l hostList) text() string {
	if len(l.Hosts) == 0 {
		return "There are no Hosts: \"kubectl drover host join NAME\" makes one.\n"
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "WORKSPACE\tNAME\tSTATE\tREADY\tREASON\tCONSUMER\tOS\tARCH\tAGENT\tMESSAGE")
	for _, r := range l.Hosts {
		cells := []string{r.Workspace, r.Name, r.State, r.Ready, r.Reason, r.Consumer, r.OS, r.Arch, r.Agent, r.Message}
		for i, cell := range cells {
			cells[i] = plain(cell)
		}
		fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = table.Flush() // it writes to memory
	return b.String()
}

func newHostLogs(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "logs NAME", Short: "Print why a Host is as it is, with the last lines of what failed",
		Long: `Print why a Host is as it is, with the last lines of what failed: at most 20, without the plan's secrets. The agent's own log is on the machine:
journalctl -u drover-host-agent.`,
		Args: arguments(1, "the name of a Host"), ValidArgsFunction: o.completeHosts,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := bounded(c.Context())
			defer cancel()
			hub, err := o.hub()
			if err != nil {
				return err
			}
			host, err := hub.host(ctx, args[0])
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.OutOrStdout(), describeHost(host))
			return err
		},
	}
	o.bindWorkspace(c)
	return c
}

func (h *hubClient) host(ctx context.Context, name string) (*v1.Host, error) {
	host := &v1.Host{}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: name}, host); err != nil {
		return nil, fmt.Errorf("read Host %s/%s: %w", h.workspace, visible(name), err)
	}
	return host, nil
}

// describeHost says how a Host is, as text.
func describeHost(host *v1.Host) string {
	var b strings.Builder
	say(&b, "%s/%s: %s\n", host.Namespace, host.Name, cmp.Or(string(host.Status.State), "Unknown"))
	if ref := host.Spec.ConsumerRef; ref != nil {
		say(&b, "%s %s has taken it\n", ref.Kind, ref.Name)
	}
	for _, kind := range []string{v1.ConditionReady, v1.ConditionRestoreConfirmed} {
		if c := meta.FindStatusCondition(host.Status.Conditions, kind); c != nil {
			say(&b, "%s is %s: %s: %s\n", kind, string(c.Status), c.Reason, c.Message)
		}
	}
	plan := host.Status.Plan
	if plan == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "Instructions: %d of %d done", plan.Done, plan.Total)
	if plan.Instruction != "" {
		say(&b, ", now %s", plan.Instruction)
	}
	b.WriteString("\n")
	if len(plan.Failing) > 0 {
		say(&b, "Probes that fail: %s\n", strings.Join(plan.Failing, ", "))
	}
	if plan.Output != "" {
		b.WriteString("\n" + visible(plan.Output) + "\n")
	}
	return b.String()
}

// completeHosts offers the workspace's Hosts.
func (o *options) completeHosts(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	return beginning(start, o.list(c.Context(), v1.GroupVersion.WithKind("HostList"), inItsWorkspace))
}

// hostWait is how long a command waits for a machine where --timeout says nothing.
const hostWait = 5 * time.Minute

// awaitHost looks at a Host until it is as wanted, and says what it waits for.
func (h *hubClient) awaitHost(ctx context.Context, name string, says io.Writer, wanted func(*v1.Host, error) (bool, error)) error {
	last := ""
	for {
		host, err := h.host(ctx, name)
		if done, err := wanted(host, err); done || err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); ready != nil {
			if said := ready.Reason + ": " + plain(ready.Message); said != last {
				last = said
				fmt.Fprintln(says, said)
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("host %s/%s: not yet done (%s): the hub goes on; see \"kubectl drover host logs %s\"", h.workspace, name, last, name), ctx.Err())
		case <-time.After(lookInterval):
		}
	}
}
