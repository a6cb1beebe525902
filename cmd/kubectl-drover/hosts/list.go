// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts contains the commands that list Hosts, join machines as Hosts, and release them.
package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/await"
)

// New returns the command "host".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "host", Short: "List Hosts, join machines as Hosts, see their failures, and release them"}
	c.AddCommand(newList(o), newJoin(o), newLogs(o), newClean(o), newRelease(o))
	return c
}

// hostList is the output of the command "host list".
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
	// Consumer is the kind and name of the object that uses the Host.
	Consumer string `json:"consumer,omitempty"`
	// Message explains why a Host is not ready.
	Message string `json:"message,omitempty"`
}

func newList(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List Hosts and their states"}
	return o.Listing(c, func(ctx context.Context, h *cli.Hub) (cli.List, error) { return readHosts(ctx, h) })
}

// readHosts reads the Hosts of a workspace, or of all workspaces if h.Workspace is empty.
func readHosts(ctx context.Context, h *cli.Hub) (hostList, error) {
	var hosts v1.HostList
	if err := h.List(ctx, &hosts, client.InNamespace(h.Workspace)); err != nil {
		return hostList{}, fmt.Errorf("list hosts of %s: %w", cmp.Or(h.Workspace, "all workspaces"), err)
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

// Names returns the names of the Hosts.
func (l hostList) Names() []string {
	return cli.Map(l.Hosts, func(r hostRow) string { return r.Name })
}

// Text formats a table for users.
func (l hostList) Text() string {
	if len(l.Hosts) == 0 {
		return "There are no Hosts. Create one with \"kubectl drover host join NAME\".\n"
	}
	rows := cli.Map(l.Hosts, func(r hostRow) []string {
		return cli.PlainCells(r.Workspace, r.Name, r.State, r.Ready, r.Reason, r.Consumer, r.OS, r.Arch, r.Agent, r.Message)
	})
	return cli.Table("WORKSPACE\tNAME\tSTATE\tREADY\tREASON\tCONSUMER\tOS\tARCH\tAGENT\tMESSAGE", rows)
}

func newLogs(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "logs NAME", Short: "Explain the state of a Host, with the last lines of output of a failure",
		Long: `Explain the state of a Host. If an instruction failed, the answer has the last lines of its
output: at most 20, without the instructions' secrets. The agent's own log is on the machine: journalctl -u
drover-host-agent.`,
		Args: cli.Arguments(1, "the name of a Host"), ValidArgsFunction: cli.First(o.CompleteNames("Host")),
		RunE: func(c *cobra.Command, args []string) error {
			return o.ReadHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
				host, err := readHost(ctx, h, args[0])
				if err != nil {
					return err
				}
				_, err = io.WriteString(c.OutOrStdout(), describeHost(host))
				return err
			})
		},
	}
	o.BindWorkspace(c)
	return c
}

func readHost(ctx context.Context, h *cli.Hub, name string) (*v1.Host, error) {
	host := &v1.Host{}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: name}, host); err != nil {
		return nil, fmt.Errorf("read Host %s/%s: %w", h.Workspace, cli.Visible(name), err)
	}
	return host, nil
}

// describeHost describes the state of a Host.
func describeHost(host *v1.Host) string {
	var b strings.Builder
	cli.Say(&b, "%s/%s: %s\n", host.Namespace, host.Name, cmp.Or(string(host.Status.State), "Unknown"))
	if ref := host.Spec.ConsumerRef; ref != nil {
		cli.Say(&b, "Used by %s %s\n", ref.Kind, ref.Name)
	}
	for _, kind := range []string{v1.ConditionReady, v1.ConditionRestoreConfirmed} {
		if c := meta.FindStatusCondition(host.Status.Conditions, kind); c != nil {
			cli.Say(&b, "%s is %s: %s: %s\n", kind, string(c.Status), c.Reason, c.Message)
		}
	}
	has := host.Status.Progress
	if has == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "Instructions: %d of %d done", has.Done, has.Total)
	if has.Instruction != "" {
		cli.Say(&b, ", now %s", has.Instruction)
	}
	b.WriteString("\n")
	if len(has.Failing) > 0 {
		cli.Say(&b, "Probes that fail: %s\n", strings.Join(has.Failing, ", "))
	}
	if has.Output != "" {
		b.WriteString("\n" + cli.Visible(has.Output) + "\n")
	}
	return b.String()
}

// hostWait is the default of --timeout for commands that wait for a machine.
const hostWait = 5 * time.Minute

// awaitHost waits until the wanted function accepts the state of a Host. It prints the Host's state whenever it
// changes.
func awaitHost(ctx context.Context, h *cli.Hub, name string, says io.Writer, wanted func(*v1.Host, error) (bool, error)) error {
	last := ""
	for {
		host, err := readHost(ctx, h, name)
		if done, err := wanted(host, err); done || err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); ready != nil {
			if said := ready.Reason + ": " + cli.Plain(ready.Message); said != last {
				last = said
				fmt.Fprintln(says, said)
			}
		}
		if !await.Time(ctx, cli.LookInterval) {
			return errors.Join(fmt.Errorf("host %s/%s is not done yet (%s): the hub continues; see \"kubectl drover host logs %s\"", h.Workspace, name, last, name), ctx.Err())
		}
	}
}
