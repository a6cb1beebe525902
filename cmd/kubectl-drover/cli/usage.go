// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Arguments requires the given number of arguments. Its error message lists the arguments' names.
func Arguments(count int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != count {
			return fmt.Errorf("%s requires %s but got %d arguments: see \"%s --help\"", c.CommandPath(), names, len(args),
				c.CommandPath())
		}
		return nil
	}
}

// NoArguments rejects all arguments.
func NoArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s has no arguments but got %q: see \"%s --help\"", c.CommandPath(), Visible(args[0]),
			c.CommandPath())
	}
	return nil
}

// suggest makes a command reject unknown subcommands and suggest similar ones. Cobra suggests only subcommands of the
// root command.
func suggest(c *cobra.Command) {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		advice := "see"
		if found := c.SuggestionsFor(args[0]); len(found) > 0 {
			advice = "did you mean \"" + strings.Join(found, `" or "`) + "\"? See"
		}
		if only := onlyCommand(c); only != nil && advice == "see" {
			advice = "did you mean \"" + only.UseLine() + "\"? See"
		}
		return fmt.Errorf("unknown command %q for %q: %s \"%s --help\"", Visible(args[0]), c.CommandPath(), advice,
			c.CommandPath())
	}
	c.SuggestionsMinimumDistance = suggestedDistance
	if !c.Runnable() { // cobra does not check the arguments of a command that is not runnable
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
}

// onlyCommand returns a command's only subcommand, or nil if the number of subcommands is not one.
func onlyCommand(c *cobra.Command) *cobra.Command {
	if all := c.Commands(); len(all) == 1 {
		return all[0]
	}
	return nil
}

// suggestedDistance is the maximum edit distance between a mistyped command and a suggestion.
const suggestedDistance = 2

// finish configures a command and its subcommands. They suggest alternatives to unknown subcommands, and complete file
// names only for arguments that are files.
func finish(c *cobra.Command) {
	if c.HasSubCommands() {
		suggest(c)
	}
	if c.ValidArgsFunction == nil && c.HasParent() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, known := c.GetFlagCompletionFunc(f.Name); !known && f.Value.Type() != "bool" {
			Complete(c, f.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range c.Commands() {
		finish(sub)
	}
}

// flagError explains an invalid flag. It replaces errors from Go's parsers, because they mention functions and types.
func flagError(c *cobra.Command, err error) error {
	if wrong := (*pflag.InvalidValueError)(nil); errors.As(err, &wrong) {
		wants := map[string]string{
			"bool": "true or false", "duration": "a duration such as 90s, 10m or 8h", "int": "a whole number",
			"int64": "a whole number",
		}[wrong.GetFlag().Value.Type()]
		if wants != "" {
			return fmt.Errorf("--%s is %q: use %s", wrong.GetFlag().Name, Visible(wrong.GetValue()), wants)
		}
	}
	return fmt.Errorf("%w: see \"%s --help\"", err, c.CommandPath())
}

var (
	flagsMissing  = regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`)
	flagsTogether = regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; ` +
		`\[(.*)\] were all set$`)
)

// explain replaces cobra's error messages about flag groups.
func explain(err error) error {
	names := func(found string, last string) string {
		all := strings.Fields(found)
		for i := range all {
			all[i] = "--" + all[i]
		}
		if len(all) == 1 {
			return all[0]
		}
		return strings.Join(all[:len(all)-1], ", ") + " " + last + " " + all[len(all)-1]
	}
	if m := flagsMissing.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("set %s", names(m[1], "or"))
	}
	if m := flagsTogether.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s cannot be combined", names(m[1], "and"))
	}
	return err
}
