// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Output formats. OutputWide, OutputName and a JSONPath template are available only for lists.
const (
	OutputText = "text"
	OutputJSON = "json"
	OutputYAML = "yaml"
	OutputWide = "wide"
	OutputName = "name"

	jsonPathPrefix = "jsonpath="
)

// TimeFormat is the format of times in tables and sentences.
const TimeFormat = "2006-01-02 15:04 MST"

// Answer is the result of a command. It can be formatted for programs and for users.
type Answer interface {
	Text() string
}

// List is an answer with one row for each object.
type List interface {
	Answer
	// Names returns the names of the objects, in the form that other commands accept.
	Names() []string
}

// Print writes an answer in the format of --output. With OutputWide, it prints more columns for answers that have a
// Wide method.
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
	case OutputWide:
		if wide, ok := answer.(interface{ Wide() string }); ok {
			text = wide.Wide
		}
		raw = []byte(text())
	case OutputName:
		if list, ok := answer.(List); ok {
			for _, name := range list.Names() {
				raw = fmt.Appendln(raw, Plain(name))
			}
		}
	default:
		if template, is := strings.CutPrefix(o.Output, jsonPathPrefix); is {
			raw, err = jsonPath(answer, template)
			break
		}
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

// jsonPath executes a JSONPath template on the JSON form of an answer, as kubectl does.
func jsonPath(answer any, template string) ([]byte, error) {
	path, err := parseJSONPath(template)
	if err != nil {
		return nil, err
	}
	var content any
	raw, err := json.Marshal(answer)
	if err == nil {
		err = json.Unmarshal(raw, &content)
	}
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := path.Execute(&out, content); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func parseJSONPath(template string) (*jsonpath.JSONPath, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("the template of --output is invalid: %w", err)
	}
	return path, nil
}

// PrintsOnlyItems reports whether the text output of a list contains only lines about its items.
func (o *Options) PrintsOnlyItems() bool { return o.Output == OutputWide || o.Output == OutputName }

// Listing turns c into a command that lists the objects of one workspace or of all workspaces. It calls read to get the
// objects. To list all workspaces, Listing sets the Hub's Workspace to "".
func (o *Options) Listing(c *cobra.Command, read func(context.Context, *Hub) (List, error)) *cobra.Command {
	everywhere := false
	c.Args = NoArguments
	c.PreRunE = func(*cobra.Command, []string) error { return o.CheckListOutput() }
	c.RunE = func(c *cobra.Command, _ []string) error {
		return o.ReadHub(c, CommandLimit, func(ctx context.Context, h *Hub) error {
			if everywhere {
				h.Workspace = ""
			}
			list, err := read(ctx, h)
			if err != nil {
				return err
			}
			if len(list.Names()) == 0 && h.Workspace != "" && (o.PrintsOnlyItems() || o.Output == OutputText) {
				c.PrintErrf("Workspace %s does not exist, or has none of these objects: -w selects another workspace, and -A all "+
					"of them.\n", Plain(h.Workspace))
			}
			return o.Print(c.OutOrStdout(), list, list.Text)
		})
	}
	o.BindWorkspace(c)
	c.Flags().BoolVarP(&everywhere, "all-workspaces", "A", false, "List the objects of all workspaces")
	o.BindListOutput(c)
	return c
}

// Map returns the results of f for the elements of a list.
func Map[T, R any](list []T, f func(T) R) []R {
	var results []R
	for _, element := range list {
		results = append(results, f(element))
	}
	return results
}

// Table formats rows below a header. The header is a string in which tabs separate the columns.
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

// PlainCells applies Plain to each cell of a table row.
func PlainCells(cells ...string) []string {
	for i, cell := range cells {
		cells[i] = Plain(cell)
	}
	return cells
}
