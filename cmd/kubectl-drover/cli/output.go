// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output formats.
const (
	OutputText = "text"
	OutputJSON = "json"
	OutputYAML = "yaml"
)

// TimeFormat is the format of times in tables and sentences.
const TimeFormat = "2006-01-02 15:04 MST"

// Answer is the result of a command. It can be printed for programs and for people.
type Answer interface {
	Text() string
}

// Print writes an answer in the format of --output.
func (o *Options) Print(out io.Writer, answer any, text func() string) error {
	var raw []byte
	var err error
	switch o.Output {
	case OutputJSON:
		raw, err = json.MarshalIndent(answer, "", "  ")
		raw = append(raw, '\n')
	case OutputYAML:
		if raw, err = json.Marshal(answer); err == nil {
			raw, err = yaml.JSONToYAML([]byte(Visible(string(raw)))) // YAML allows some characters only in escaped form
		}
	default:
		raw = []byte(text())
	}
	if err == nil {
		_, err = out.Write(raw)
	}
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// Listing makes c list objects of one workspace, or of all workspaces. read lists the objects of the hub's workspace,
// where "" means all workspaces.
func (o *Options) Listing(c *cobra.Command, read func(context.Context, *Hub) (Answer, error)) *cobra.Command {
	everywhere := false
	c.Args = cobra.NoArgs
	c.PreRunE = func(*cobra.Command, []string) error { return o.CheckOutput() }
	c.RunE = func(c *cobra.Command, _ []string) error {
		return o.ReadHub(c, CommandLimit, func(ctx context.Context, h *Hub) error {
			if everywhere {
				h.Workspace = ""
			}
			list, err := read(ctx, h)
			if err != nil {
				return err
			}
			return o.Print(c.OutOrStdout(), list, list.Text)
		})
	}
	o.BindWorkspace(c)
	c.Flags().BoolVarP(&everywhere, "all-workspaces", "A", false, "List the objects of all workspaces")
	o.BindOutput(c)
	return c
}

// Table formats rows below a header. Tabs separate the columns of the header.
func Table(header string, rows [][]string) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, header)
	for _, cells := range rows {
		fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = table.Flush() // writing to memory does not fail
	return b.String()
}

// PlainCells applies Plain to each cell of a table's row.
func PlainCells(cells ...string) []string {
	for i, cell := range cells {
		cells[i] = Plain(cell)
	}
	return cells
}
