// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

const pathSessions = "/v1/auth/sessions"

// hubSession is the hub's description of a session.
type hubSession struct {
	ID      string     `json:"id"`
	Client  string     `json:"client"`
	Started time.Time  `json:"started"`
	Renewed *time.Time `json:"renewed,omitempty"`
	Expires time.Time  `json:"expires"`
	Current bool       `json:"current,omitempty"`
}

type hubSessions struct {
	Items []hubSession `json:"items"`
}

// Names returns the IDs of the sessions.
func (l hubSessions) Names() []string {
	var names []string
	for _, s := range l.Items {
		names = append(names, s.ID)
	}
	return names
}

// Text formats a table for users.
func (l hubSessions) Text() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ID\tCLIENT\tSTARTED\tRENEWED\tEXPIRES\tCURRENT")
	at := func(t time.Time) string { return t.Local().Format(time.RFC3339) }
	for _, s := range l.Items {
		renewed, current := "never", "no"
		if s.Renewed != nil {
			renewed = at(*s.Renewed)
		}
		if s.Current {
			current = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Plain(s.ID), cli.Plain(s.Client), at(s.Started), renewed,
			at(s.Expires), current)
	}
	_ = table.Flush() // writing to memory does not fail
	return b.String()
}

// NewSession returns the command "session".
func NewSession(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	list := &cobra.Command{
		Use: "list", Short: "List your sessions, newest first", Args: cli.NoArguments,
		PreRunE: func(*cobra.Command, []string) error { return o.CheckListOutput() },
		RunE:    listOwn[hubSessions](o, pathSessions),
	}
	o.BindListOutput(list)
	revoke := &cobra.Command{
		Use: "revoke ID...", Short: "End sessions; the hub rejects their tokens immediately",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("kubectl drover session revoke requires the IDs of sessions: \"kubectl drover session list\" " +
					"lists them")
			}
			return nil
		},
		ValidArgsFunction: completeOwn[hubSessions](o, pathSessions), RunE: o.revokeOwn(pathSessions),
	}
	c := &cobra.Command{
		Use: "session", Short: "List and end your sessions on the hub",
		Long: `List and end your sessions on the hub. Each sign-in starts a session: with kubectl, on the hub's page, or on a device. A session that you end cannot be renewed, and its tokens are rejected. "kubectl drover logout" ends the current session.`,
	}
	c.AddCommand(list, revoke)
	return c
}
